"""Is kvtier as quick as a person who has every manifest ready?"""

from statistics import median

import pytest
from bringups import BringUp, by_kubectl, by_kvtier

from livecluster import figures
from livecluster.installation import MIB, Installation

ROUNDS = 5
MOST_TIMES_FLOOR = 1.1
MOST_BEHIND_RANKS = 0.3
MOST_REQUESTS = 75
MOST_RESIDENT = 80 * MIB


@pytest.mark.timeout(1200, func_only=True)
def test_eight_ranks_are_ready_as_soon_as_by_kubectl_and_the_tier_with_them(
    kvtier: Installation,
) -> None:
    fresh = kvtier.resident_bytes()
    operator: list[BringUp] = []
    floor: list[BringUp] = []
    for _ in range(1 + ROUNDS):
        operator.append(by_kvtier(kvtier))
        floor.append(by_kubectl(kvtier))
    idle = kvtier.resident_bytes()
    # The first of each only warms caches.
    operator, floor = operator[1:], floor[1:]
    ranks = median(each.ranks_ready for each in operator)
    least = median(each.ranks_ready for each in floor)
    behind = median(each.tier_ready - each.ranks_ready for each in operator)
    requests = max(each.requests for each in operator)
    rows = [
        ("", "kubectl returns", "all ranks Ready", "tier Ready", "API requests"),
        (
            "kubectl, ready manifests",
            spread([each.applied for each in floor]),
            spread([each.ranks_ready for each in floor]),
            "-",
            "-",
        ),
        (
            "kvtier",
            spread([each.applied for each in operator]),
            spread([each.ranks_ready for each in operator]),
            spread([each.tier_ready for each in operator]),
            f"{median(each.requests for each in operator):.0f} (most {requests})",
        ),
        ("ratio", "", f"{ranks / least:.2f}", f"{behind:.2f} s after the ranks", ""),
        (
            "controller",
            f"{fresh / MIB:.0f} MiB resident fresh",
            f"{idle / MIB:.0f} MiB after",
            "",
            "",
        ),
    ]
    title = (
        f"Eight ranks, seconds after the start of `kubectl apply --server-side`: median of "
        f"{ROUNDS} (least to most), taken in turns."
    )
    text = f"{title}\n\n{figures.table(rows)}\n{figures.circumstances(kvtier.cluster)}"
    figures.write("benchmarks.md", place="bring-up", text=text)
    assert ranks <= MOST_TIMES_FLOOR * least, f"{ranks:.2f} s against {least:.2f} s"
    assert behind <= MOST_BEHIND_RANKS, f"the tier is Ready {behind:.2f} s after its ranks"
    assert requests <= MOST_REQUESTS
    assert max(fresh, idle) <= MOST_RESIDENT


def spread(seconds: list[float]) -> str:
    return f"{median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"

"""A generation taken out of service, beside what people do today: FLUSHALL and a restart."""

import time
from collections.abc import Callable
from statistics import median

import pytest

from livecluster import figures
from livecluster.fence_time import EIGHT_RANKS, seconds_to_gone
from livecluster.fixtures import tiers
from livecluster.fleet import Runs, fleet
from livecluster.generations import Generations, rolled
from livecluster.installation import Installation
from livecluster.tier import Tier, merged

ROUNDS = 3
MOST_GONE = 2.0
MOST_FENCED = 120.0
REPLICAS = 2


@pytest.mark.timeout(1800, func_only=True)
def test_eight_ranks_are_fenced_within_two_seconds_and_the_files_follow(
    kvtier: Installation,
) -> None:
    with tiers(kvtier.cluster, label="fence") as new_tier:
        tier = new_tier("chat")
        tier.apply(EIGHT_RANKS)
        tier.wait_ready()
        gone, fenced = [], []
        for salt in range(ROUNDS):
            took = _fence(tier, str(salt))
            gone.append(took[0])
            fenced.append(took[1])
    with tiers(kvtier.cluster, label="flushall") as new_tier:
        flushed = _by_hand(new_tier("chat"))
    rows = [
        (
            "",
            "nobody reads the old KV any more",
            "and no restart brings it back",
            "engines restarted",
        ),
        (
            "kvtier, 8 ranks",
            f"{median(gone):.2f} s (most {max(gone):.2f})",
            f"{median(fenced):.0f} s (most {max(fenced):.0f})",
            "none",
        ),
        (
            "by hand: roll all engines, then FLUSHALL on 8 ranks",
            f"{flushed:.1f} s, {REPLICAS} stand-in engines that start in a second",
            "-",
            "all, and all other KV is lost",
        ),
    ]
    title = (
        f"Seconds after `kubectl patch` of `model.salt` returned, {ROUNDS} times; the second "
        "waits for the kubelets to bring the users' file."
    )
    text = f"{title}\n\n{figures.table(rows)}\n{figures.circumstances(kvtier.cluster)}"
    figures.write("benchmarks.md", place="fence", text=text)
    assert max(gone) <= MOST_GONE
    assert max(fenced) <= MOST_FENCED


def _fence(tier: Tier, salt: str) -> tuple[float, float]:
    """Until access is proven gone, and until the generation is Fenced or further."""
    generations = Generations(tier)
    (live,) = (each for each, row in generations.rows().items() if row["state"] == "Live")
    token = tier.engine().token
    began = time.monotonic()
    gone = seconds_to_gone(tier, live, token, _salted(tier, salt), most=60)
    generations.wait(live, "Purged", "gone", seconds=300)
    return gone, time.monotonic() - began


def _salted(tier: Tier, salt: str) -> Callable[[], None]:
    return lambda: tier.patch({"model": {"salt": salt}})


def _by_hand(tier: Tier) -> float:
    """Old engines write on until each is replaced, so the KV is only gone with the last of them."""
    tier.apply(merged(rolled({}), EIGHT_RANKS))
    tier.wait_ready()
    client = tier.engine()
    operator = tier.secret(f"{tier.name}-operator")["token"]
    with fleet(tier, replicas=REPLICAS) as engines:
        engines.deploy(Runs.as_declared(tier))
        engines.wait_rolled()
        engines.wait("hit")
        began = time.monotonic()
        engines.roll(seed="new weights")
        engines.wait_rolled()
        for rank in client.ranks:
            with client.connect(rank, username="operator", password=operator) as session:
                session.execute_command("FLUSHDB")
        return time.monotonic() - began

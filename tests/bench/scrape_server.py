"""A controller's /metrics with a thousand tiers of eight ranks: ``scrape_server.py PORT TIERS``.

It says in one line of JSON how many series there are and what they take, and serves until it is
told to stop.
"""

import asyncio
import gc
import json
import resource
import signal
import sys
from itertools import product
from pathlib import Path

from kvtier.admission.storm import State
from kvtier.api.reasons import CONDITION_REASONS
from kvtier.breakeven.assessment import Verdict
from kvtier.generation.entry import GenerationState
from kvtier.metrics import Metrics
from kvtier.metrics_ranks import DENIED
from kvtier.reconcile.http import serve
from kvtier.series import TIER, Family

RANKS = 8
VALUES = {
    "rank": [str(rank) for rank in range(RANKS)],
    "reason": list(DENIED),
    "type": list(CONDITION_REASONS),
    "status": ["True", "False", "Unknown"],
    "severity": ["Error", "Warning"],
    "result": ["success", "error"],
    "bound": ["least", "most"],
    "verdict": [verdict.value for verdict in Verdict],
    # A rollout: the one that serves and the one that drains.
    "generation": ["0123456789abcdef", "fedcba9876543210"],
}
"""By label all values that it has in a tier that tells everything there is to tell."""
STATES = {
    "kvtier_admission_state": [state.value for state in State],
    "kvtier_generation_state": [state.value for state in GenerationState],
}


def fill(metrics: Metrics, tiers: int) -> int:
    """Give each tier every series, with figures as long as real ones; how many there are."""
    count = 0
    for number in range(tiers):
        key = (f"team-{number % 40:02}", f"prefill-tier-{number:04}")
        for family in metrics.tiers.families:
            is_flag = "state" in family.labels
            for place, more in enumerate(product(*values(family))):
                family.set(key, 1.0 if is_flag else 123456789.0 * place + number, *more)
                count += 1
    return count


def values(family: Family) -> list[list[str]]:
    of = {**VALUES, "state": STATES.get(family.name, [])}
    return [of[label] for label in family.labels if label not in TIER]


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def main(port: int, tiers: int) -> None:
    metrics = Metrics()
    gc.collect()
    before = resident()
    series = fill(metrics, tiers)
    gc.collect()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with serve(
        listen=f"127.0.0.1:{port}",
        registry=metrics.process,
        tiers=metrics.tiers,
        is_ready=lambda: True,
    ):
        print(json.dumps({"series": series, "table_bytes": resident() - before}), flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))

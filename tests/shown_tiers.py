"""A controller's and a webhook's metrics, of two tiers that are made up, on two ports.

``prod/llama`` is in a storm: one rank is down, an old generation drains, and its engines compute
what they would have fetched. ``calm/llama`` is well. What the code computes of a tier it computes
here too: verdict, findings, admission. Counters go on five times a second, as in a life.
"""

import argparse
import asyncio
import time
from pathlib import Path
from typing import Final

from kvtier.admission.storm import State
from kvtier.api.load import load_file
from kvtier.breakeven.assessment import Evidence, LinkFigures
from kvtier.generation.entry import GenerationEntry, GenerationState
from kvtier.metrics import Metrics
from kvtier.metrics_ranks import RankFigures, figures
from kvtier.placement.judgement import judge
from kvtier.plan.admission import Enforcement, View, admission_status
from kvtier.reconcile.http import serve
from kvtier.webhook.metrics import WebhookMetrics

SAMPLE: Final = Path(__file__).parents[1] / "deploy/samples/llama-3.1-70b.yaml"
STORM: Final = ("prod", "llama")
CALM: Final = ("calm", "llama")
CONDITIONS: Final = (
    *("SpecValid", "StoreReady", "GenerationCurrent", "Ready"),
    *("PlacementAccepted", "EarningItsKeep", "Warm", "AdmissionEnforced"),
)
DAY: Final = 86400.0
LOST: Final = 3
"""The rank that is down."""


def entry(name: str, state: GenerationState) -> GenerationEntry:
    return GenerationEntry(
        id=name, identity=None, token=f"token-of-{name}", state=state, since="2026-11-30T00:00:00Z"
    )


class Shown:
    """Both processes' metrics."""

    def __init__(self) -> None:
        self.controller, self.webhook = Metrics(), WebhookMetrics()
        self.ticks = 0
        self.controller.leader.set(1)
        self.controller.queue_depth.set(2)
        self.controller.queue_oldest.set(0.4)
        self.webhook.set_certificate(ends=time.time() + 60 * DAY)
        for key in (STORM, CALM):
            self._show(key, storm=key == STORM)

    def _show(self, key: tuple[str, str], *, storm: bool) -> None:
        metrics, tier, now = self.controller, load_file(str(SAMPLE)), time.time()
        engines = 3 if storm else 8
        link = LinkFigures(
            *("zone", 1.1e9 if storm else 3.0e9, 50e-6),
            evidence=Evidence.PROBED,
            at="2026-11-30T00:00:00Z",
            node="node-1",
        )
        judgement = judge(tier.spec, link=link, engines=engines)
        bad = {"Ready", "StoreReady", "Warm", "EarningItsKeep"} if storm else set()
        conditions = [
            {"type": each, "status": "False" if each in bad else "True"} for each in CONDITIONS
        ]
        ranks = tier.spec.pool.ranks
        metrics.set_conditions(*key, conditions)
        metrics.set_tier(*key, ranks=ranks, ready=ranks - storm)
        metrics.set_paused(*key, paused=False)
        metrics.set_placement(*key, engines=engines, engines_outside=0, ranks_outside=0)
        metrics.set_findings(*key, findings=judgement.findings)
        metrics.set_certificate_expiry(*key, ends=[now + 5 * DAY] if storm else [])
        metrics.verdict.show(*key, judgement=judgement, target_ttft=2.0, probe_interval=3600.0)
        metrics.verdict.count_probe(*key, result="success")
        metrics.verdict.set_probed(
            *key, bytes_per_second=link.bytes_per_second, round_trip=50e-6, at=now - 600
        )
        rate = link.bytes_per_second / ranks
        metrics.ranks.show_probed(*key, ranks=[(rank, rate, 50e-6) for rank in range(ranks)])
        metrics.engines.set_rate(*key, at_least=4800.0, at_most=5100.0)
        view = View(
            state=State.STORM if storm else State.OPEN,
            hit=0.03 if storm else 0.9,
            offered=25e3,
            peak=30e3,
            limit=14e3 if storm else None,
            enforcement=Enforcement(told=True, replicas=1),
        )
        calm = View(hit=0.9, offered=25e3, peak=30e3)
        told = {"engines": engines, "seen": None, "planned": False, "now": "2026-11-30T00:00:00Z"}
        tier.status["admission"] = admission_status(tier, view=calm, **told)
        admission = admission_status(tier, view=view, **told) | {"maxQueuedTokens": 30000}
        metrics.admission.show(*key, admission=admission, view=view, enforces=storm)
        metrics.admission.show_policy(*key, rate=7.0 if storm else None)
        old = [entry("g-old", GenerationState.DRAINING)] if storm else []
        metrics.generations.show(
            *key,
            generations=[entry("g-new", GenerationState.LIVE), *old],
            engines={"g-new": 2, "g-old": 1} if storm else {"g-new": engines},
            unproven=0,
            drifted=0,
            unreadable=0,
            drain_seconds=1800.0,
            drains_since={"g-old": now - 300} if storm else {},
        )

    def tick(self) -> None:
        """A fifth of a second of their lives."""
        self.ticks += 1
        metrics = self.controller
        for result in ("success", "error"):
            metrics.observe_reconcile(seconds=0.02, result=result)
        metrics.count_request(verb="get", kind="Pod", code=200)
        metrics.throttled.inc()
        metrics.generations.observe_fence(0.4, stage="access_gone")
        self.webhook.observe_review(result="allowed", seconds=0.004)
        for key in (STORM, CALM):
            denied = self.ticks if key == STORM else 0
            ranks = {rank: self._figures(rank, denied=denied) for rank in range(8)}
            if key == STORM:
                ranks[LOST] = None
                metrics.engines.count_failed_loads(*key, chunks=2.0)
            metrics.ranks.show(*key, ranks=ranks, restarted=(), at=time.time())
            recomputed = 1900.0 if key == STORM else 200.0
            metrics.engines.count_tokens(*key, prompt=2000.0, recomputed=recomputed)
            metrics.engines.count_scrape(*key, result="success")
            metrics.generations.count_purged(*key, keys=3)

    def _figures(self, rank: int, *, denied: int) -> RankFigures | None:
        """Of an INFO such as a rank's."""
        info = {
            "uptime_in_seconds": 3600 + self.ticks // 5,
            "used_memory": (60 + rank % 2) * 2**30,
            "maxmemory": 64 * 2**30,
            "connected_clients": 12,
            "evicted_keys": 5 * self.ticks,
            "keyspace_hits": 300 * self.ticks,
            "keyspace_misses": 20 * self.ticks,
            "total_net_input_bytes": 10_000_000 * self.ticks,
            "total_net_output_bytes": (90_000_000 + 10_000_000 * rank) * self.ticks,
            **{f"acl_access_denied_{reason}": denied for reason in ("auth", "cmd", "key")},
        }
        keys = f"keys={200_000 + 1000 * rank},expires=0,avg_ttl=0"
        return figures({name: str(value) for name, value in info.items()} | {"db0": keys})


async def run(*, controller: int, webhook: int) -> None:
    shown = Shown()
    async with (
        serve(
            listen=f"127.0.0.1:{controller}",
            registry=shown.controller.process,
            tiers=shown.controller.tiers,
            is_ready=lambda: True,
        ),
        serve(
            listen=f"127.0.0.1:{webhook}", registry=shown.webhook.registry, is_ready=lambda: True
        ),
    ):
        while True:
            shown.tick()
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--controller", type=int)
    parser.add_argument("--webhook", type=int)
    asyncio.run(run(**vars(parser.parse_args())))

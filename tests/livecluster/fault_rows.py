"""What a fault did: the measure of kvtier's recovery, and a row of docs/faults.md."""

import time
from typing import Any

from livecluster.audit import Request
from livecluster.figures import write_row
from livecluster.tier import Tier
from livecluster.waiting import eventually


def control_plane_row(what: str, saw: str, back: str, requests: str) -> None:
    write_row("faults.md", place="control-plane", row=(what, saw, back, requests))


def repaired(tier: Tier, *, rank: int = 0, seconds: float = 60.0) -> float:
    """Delete a rank's Service; returns after how many seconds kvtier had made it again."""
    name = f"{tier.name}-r{rank}"
    old = tier.child("services", name)
    assert old is not None, f"Service {name} does not exist"
    tier.kubectl("delete", "service", name)
    begin = time.monotonic()

    def back() -> bool:
        found = tier.child("services", name)
        return found is not None and found["metadata"]["uid"] != old["metadata"]["uid"]

    eventually(back, seconds=seconds, what=f"Service {name} is there again")
    return time.monotonic() - begin


def client_saw(report: dict[str, Any]) -> str:
    """What a load test went through. Wrong bytes are never words: they fail."""
    assert not any(report["wrong"].values()), report["wrong"]
    done = f"{report['completed']} of {report['requests']} requests"
    outages = _outages(report)
    if not outages:
        return f"nothing: {done}, hit rate {report['hitRate']:.2f}, no rank ever missed"
    ranks = sorted({outage["rank"] for outage in outages})
    kinds = ", ".join(sorted({outage["kind"] for outage in outages}))
    return f"rank {', '.join(map(str, ranks))} missed ({kinds}): {done}, the rest recomputed"


def broken(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Outages that a busy machine does not make: whatever is not a timeout."""
    return [outage for outage in _outages(report) if outage["kind"] != "timeout"]


def _outages(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that were not over before the first hit, and so before anything was done to the tier:
    a new Service is refused until the client's node has heard of it."""
    hits = (second["at"] for second in report["timeline"] if second["hitRate"])
    began = next(hits, "")
    return [each for each in report["outages"] if each["to"] is None or each["to"] > began]


def requests_in_words(requests: list[Request], *, seconds: float) -> str:
    """How many, and how many of them write, without the Lease and watches."""
    counted = counting(requests)
    writes = [each for each in counted if each.is_write]
    return f"{len(counted)} ({len(writes)} writes) in {seconds:.0f} s"


def counting(requests: list[Request]) -> list[Request]:
    """Requests that reconciles make: not for the Lease, which comes by the clock, nor watches,
    which end when they end."""
    return [each for each in requests if each.resource != "leases" and each.verb != "watch"]

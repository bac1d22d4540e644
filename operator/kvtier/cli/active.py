"""Whether a controller is at work, by its Lease, as far as this person may know."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kvtier.breakeven.words import age
from kvtier.cluster.protocol import LEASE, ApiError, Cluster, Forbidden, Object
from kvtier.plan.probing import seconds_of
from kvtier.reconcile.lease import LABEL

USUAL_NAMESPACE: Final = "kvtier-system"
"""Where docs/install.md puts it; asked for by those who may not look everywhere."""
LONG_AGO: Final = 30.0
"""Seconds since a renewal, of which there is one every 5, with some for clocks that differ. A
controller that was uninstalled may not have given its Lease back: its rights went first."""
LATE: Final = 12.0
"""Two renewals were missed."""
_AWAY: Final = "No controller runs"


@dataclass(frozen=True, slots=True)
class Controller:
    """``active`` is None where that is not known; ``hint`` is one line, empty if it is."""

    active: bool | None = None
    hint: str = ""


async def controller(cluster: Cluster, *, now: datetime) -> Controller:
    """What the Leases of kvtier's controllers say. Raises Unavailable."""
    for namespace in ("", USUAL_NAMESPACE):
        try:
            leases = await cluster.list(LEASE, namespace, LABEL)
        except Forbidden:
            continue
        except ApiError as error:
            return Controller(hint=f"Whether a controller runs is not known: {error}")
        if leases or not namespace:
            return _judged(leases, now=now)
    return Controller(
        hint="Whether a controller runs is not known: that takes the right to list leases in its "
        f"namespace ({USUAL_NAMESPACE}, if it was installed as documented)"
    )


def _judged(leases: list[Object], *, now: datetime) -> Controller:
    if not leases:
        return Controller(False, f"{_AWAY}: there is no Lease of one in this cluster")
    ages = [_age(lease, now=now) for lease in leases]
    held = [seconds for seconds in ages if seconds is not None]
    metadata = leases[0]["metadata"]
    name = f"Lease {metadata['namespace']}/{metadata['name']}"
    if held and min(held) < LONG_AGO:
        late = f"The controller is late: {name} was renewed {age(min(held))} ago"
        return Controller(True, late if min(held) > LATE else "")
    said = f"was renewed {age(min(held))} ago" if held else "is held by nobody"
    return Controller(False, f"{_AWAY}: {name} {said}")


def _age(lease: Object, *, now: datetime) -> float | None:
    """Seconds since the last renewal by this machine's clock; None if nobody holds it."""
    spec = lease.get("spec") or {}
    if not spec.get("holderIdentity"):
        return None
    return now.timestamp() - seconds_of(spec.get("renewTime"))

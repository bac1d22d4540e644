"""What Envoy Gateway is asked for in a storm: one BackendTrafficPolicy on the tier's routes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvtier.api.types import GROUP, KVCacheTier
from kvtier.render.meta import metadata
from kvtier.render.names import policy_name

API_VERSION: Final = "gateway.envoyproxy.io/v1alpha1"
KIND: Final = "BackendTrafficPolicy"
ROUTE_GROUP: Final = "gateway.networking.k8s.io"
ROUTE: Final = "HTTPRoute"
SECONDS: Final = {"Second": 1.0, "Minute": 60.0}
"""The units that kvtier writes."""
MOST_REQUESTS: Final = 2**32 - 1
"""The field is a uint32."""
RATE_ANNOTATION: Final = f"{GROUP}/requests-per-second"
"""On the policy: what one Envoy's part is before it is rounded to whole requests."""
BY_SECOND_FROM: Final = 0.9
"""Requests/s of one Envoy from which its bucket is that of a second. One a second is then at most a
ninth too many; whole requests of a second would be twice too many at a half."""


@dataclass(frozen=True, slots=True)
class RequestLimit:
    """What one Envoy lets in: ``requests`` a ``unit``. Its bucket holds them, and begins full.

    ``rate`` is what they are rounded from, in requests/s.
    """

    requests: int
    unit: str
    rate: float

    @property
    def per_second(self) -> float:
        return self.requests / SECONDS[self.unit]


def request_limit(*, tokens: float, mean_prompt: float, replicas: int) -> RequestLimit:
    """One Envoy's part of a limit of ``tokens`` prompt tokens/s, in whole requests, never zero."""
    return rounded(float(f"{tokens / mean_prompt / replicas:.6g}"))


def rounded(rate: float) -> RequestLimit:
    """``rate`` requests/s, rounded down: what is let in too much waits in engines, and grows."""
    unit = "Second" if rate >= BY_SECOND_FROM else "Minute"
    return RequestLimit(min(max(int(rate * SECONDS[unit]), 1), MOST_REQUESTS), unit, rate)


def limit_in(policy: Mapping[str, Any]) -> RequestLimit | None:
    """The limit that a policy of kvtier's own holds; None if somebody else has changed it."""
    try:
        limit = rounded(float(policy["metadata"]["annotations"][RATE_ANNOTATION]))
        same = policy["spec"]["rateLimit"] == _rate_limit(limit)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return limit if same else None


def _rate_limit(limit: RequestLimit) -> dict[str, Any]:
    return {"local": {"rules": [{"limit": {"requests": limit.requests, "unit": limit.unit}}]}}


def admission_policy(tier: KVCacheTier, limit: RequestLimit) -> dict[str, Any]:
    """The policy that holds ``limit`` in each Envoy, on all of the tier's routes.

    Raises ValueError for a tier that names no routes.
    """
    gateway = tier.spec.admission.envoy_gateway
    if gateway is None:
        raise ValueError("spec.admission.envoyGateway: the tier has none")
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata(tier, policy_name(tier.metadata.name))
        | {"annotations": {RATE_ANNOTATION: f"{limit.rate:.6g}"}},
        "spec": {
            "targetRefs": [
                {"group": ROUTE_GROUP, "kind": ROUTE, "name": name} for name in gateway.routes
            ],
            # Without it, a policy of the whole Gateway would lose these routes: its timeouts and
            # retries with them (Envoy Gateway 1.9, internal/gatewayapi/backendtrafficpolicy.go).
            "mergeType": "StrategicMerge",
            "rateLimit": _rate_limit(limit),
        },
    }

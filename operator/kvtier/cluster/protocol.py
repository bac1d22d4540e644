"""What kvtier asks of a Kubernetes API server: plain dicts in and out, typed errors.

Two implementations, one contract suite for both: ``cluster.client.AioCluster`` and, in memory,
``cluster.fake.FakeCluster``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

FIELD_MANAGER = "kvtier"

Object = dict[str, Any]
"""A Kubernetes object as JSON, ``apiVersion`` and ``kind`` filled in, without managedFields; of a
ConfigMap's the time of the last write is left."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource type. ``plural`` is the name in the URL."""

    api_version: str
    plural: str
    kind: str
    namespaced: bool = True

    def path(self, namespace: str, name: str = "") -> str:
        """The URL path; an empty namespace means cluster-scoped, or all namespaces in a list."""
        root = "/api" if "/" not in self.api_version else "/apis"
        parts = [root, self.api_version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        return "/".join(parts)


TIER = Kind("kvtier.dev/v1alpha1", "kvcachetiers", "KVCacheTier")
STATEFULSET = Kind("apps/v1", "statefulsets", "StatefulSet")
SERVICE = Kind("v1", "services", "Service")
CONFIGMAP = Kind("v1", "configmaps", "ConfigMap")
SECRET = Kind("v1", "secrets", "Secret")
POD = Kind("v1", "pods", "Pod")
NODE = Kind("v1", "nodes", "Node", namespaced=False)
EVENT = Kind("v1", "events", "Event")
JOB = Kind("batch/v1", "jobs", "Job")
LEASE = Kind("coordination.k8s.io/v1", "leases", "Lease")
TRAFFIC_POLICY = Kind(
    "gateway.envoyproxy.io/v1alpha1", "backendtrafficpolicies", "BackendTrafficPolicy"
)
HTTP_ROUTE = Kind("gateway.networking.k8s.io/v1", "httproutes", "HTTPRoute")
KINDS = (
    *(TIER, STATEFULSET, SERVICE, CONFIGMAP, SECRET, POD, NODE, EVENT, JOB, LEASE),
    *(TRAFFIC_POLICY, HTTP_ROUTE),
)

_BY_IDENTITY = {(kind.api_version, kind.kind): kind for kind in KINDS}


def kind_of(obj: Mapping[str, Any]) -> Kind:
    """The kind of an object. Raises ValueError when kvtier does not handle it."""
    identity = (obj.get("apiVersion", ""), obj.get("kind", ""))
    kind = _BY_IDENTITY.get(identity)
    if kind is None:
        raise ValueError(f"kind: {identity[0]} {identity[1]} is none that kvtier handles")
    return kind


class ApiError(Exception):
    """A request that the API server refused, or never answered.

    ``status`` is the HTTP status, 0 without an answer. ``reason`` is the machine-readable reason
    of Kubernetes' Status object. ``retry_after`` is in seconds, None when the server named none.
    ``fields`` are the paths that the server finds fault with, ``name`` the object it speaks of.
    """

    def __init__(
        self,
        *,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        fields: tuple[str, ...] = (),
        name: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.fields = fields
        self.name = name

    def __str__(self) -> str:
        return f"{self.status} {self.reason}: {self.message}"


class AlreadyExists(ApiError):
    """``create`` or ``post`` found an object of that name; nothing was touched."""


class Conflict(ApiError):
    """The uid or the resourceVersion is not the one that was named; nothing was touched."""


class NotFound(ApiError):
    """The object, its namespace or its resource type does not exist."""


class Forbidden(ApiError):
    """RBAC or an admission plugin refused, or (401) the credentials are not accepted."""


class Invalid(ApiError):
    """The object breaks its schema or changes an immutable field."""


class TooManyRequests(ApiError):
    """The server sheds load: wait ``retry_after``."""


class Unavailable(ApiError):
    """No answer, or 5xx. A write may or may not have happened: observe before deciding."""


def error_for(
    *,
    status: int,
    reason: str,
    message: str,
    retry_after: float | None = None,
    fields: tuple[str, ...] = (),
    name: str = "",
) -> ApiError:
    """The typed error for an HTTP status and Kubernetes' reason."""
    kind: type[ApiError]
    if status == 409:
        kind = AlreadyExists if reason == "AlreadyExists" else Conflict
    elif status in (401, 403):
        kind = Forbidden
    elif status == 404:
        kind = NotFound
    elif status in (400, 415, 422):
        kind = Invalid
    elif status == 429:
        kind = TooManyRequests
    elif status >= 500 or status == 0:
        kind = Unavailable
    else:
        kind = ApiError
    return kind(
        status=status,
        reason=reason,
        message=message,
        retry_after=retry_after,
        fields=fields,
        name=name,
    )


class Cluster(Protocol):
    """One API server. Every method raises an ApiError subclass when the server refuses.

    ``namespace`` is "" for cluster-scoped kinds and, in ``list``, for all namespaces.
    """

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The object, or None if there is none. NotFound if the resource type is not served."""

    async def list(
        self, kind: Kind, namespace: str, label_selector: str = "", *, field_selector: str = ""
    ) -> list[Object]:
        """Every object that matches, as of one moment not before the call.

        ``field_selector`` is of the form ``path=value,path=value``; the API server knows a few
        paths of each kind.
        """

    async def create(self, obj: Mapping[str, Any]) -> Object:
        """Make a new object by server-side apply, so that a later ``apply`` prunes.

        AlreadyExists if the name is taken, whoever owns it: nothing is ever seized.
        """

    async def apply(
        self, obj: Mapping[str, Any], *, uid: str, resource_version: str | None = None
    ) -> Object:
        """Apply the full intent to the object that has this uid (and version); fields left out are
        pruned.

        Conflict if the object is gone or another one has taken its name, or if it is of another
        version; never creates.
        """

    async def apply_status(self, obj: Mapping[str, Any], *, uid: str) -> Object:
        """Like ``apply``, for the status subresource."""

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str | None = None,
    ) -> None:
        """Delete the object that has this uid (and version), and what only it owns. Nothing to do
        if it is gone."""

    async def force_delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        """Like ``delete`` with grace period 0: for pods whose node is gone."""

    async def post(self, obj: Mapping[str, Any]) -> Object:
        """Make a new object by POST: for Lease, Event and Job, which are never applied."""

    async def replace(self, obj: Mapping[str, Any]) -> Object:
        """PUT; ``metadata.resourceVersion`` must be set and is a precondition (Conflict)."""

    async def merge_patch(
        self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> Object:
        """RFC 7386 merge patch; ``metadata.uid`` or ``resourceVersion`` in it is a precondition."""

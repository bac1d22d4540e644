"""An API server in memory, for tests: server-side apply, preconditions, faults, a request log.

Controllers do not run by themselves: ``collect_garbage`` and ``run_statefulsets`` play them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from kvtier.cluster import fake_jobs, fake_workloads
from kvtier.cluster.fake_storage import WITH_STATUS, EventType, Id, Storage, error, identify
from kvtier.cluster.protocol import FIELD_MANAGER, KINDS, Kind, Object
from kvtier.reconcile.clock import Clock, SystemClock

When = Literal["before", "after"]
Answer = TypeVar("Answer")


class Stopped(BaseException):
    """The process ends here: no ``except Exception`` may live through it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One call, in the order of arrival. ``index`` counts from 0."""

    index: int
    verb: str
    kind: Kind
    namespace: str
    name: str

    @property
    def writes(self) -> bool:
        return self.verb not in ("get", "list")


Fault = Callable[[Request, When], BaseException | None]


class FakeCluster:
    """Implements ``cluster.protocol.Cluster``.

    ``requests`` is the log. Each of ``faults`` may return an error to raise before a call is
    carried out, or after it was. ``served`` are the kinds that exist; ``lost_nodes`` names the
    nodes whose kubelet does not answer.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.served: set[Kind] = set(KINDS)
        self.lost_nodes: set[str] = set()
        self._storage = Storage(clock=clock or SystemClock())

    # The protocol

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        where = (kind, namespace, name)
        return await self._call("get", where, lambda: self._storage.get(where))

    async def list(
        self, kind: Kind, namespace: str, label_selector: str = "", *, field_selector: str = ""
    ) -> list[Object]:
        return await self._call(
            "list",
            (kind, namespace, ""),
            lambda: self._storage.list(kind, namespace, label_selector, fields=field_selector),
        )

    async def create(self, obj: Mapping[str, Any]) -> Object:
        owner = (FIELD_MANAGER, "Apply", "")
        return await self._call("create", identify(obj), lambda: self._storage.add(obj, owner))

    async def apply(
        self, obj: Mapping[str, Any], *, uid: str, resource_version: str | None = None
    ) -> Object:
        return await self._call(
            "apply",
            identify(obj),
            lambda: self._storage.apply(
                obj, uid=uid, resource_version=resource_version, subresource=""
            ),
        )

    async def apply_status(self, obj: Mapping[str, Any], *, uid: str) -> Object:
        return await self._call(
            "apply_status",
            identify(obj),
            lambda: self._storage.apply(obj, uid=uid, subresource="status"),
        )

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str | None = None,
    ) -> None:
        where = (kind, namespace, name)
        await self._call(
            "delete",
            where,
            lambda: self._storage.delete(where, uid=uid, resource_version=resource_version),
        )

    async def force_delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        where = (kind, namespace, name)
        await self._call(
            "force_delete", where, lambda: self._storage.delete(where, uid=uid, graceful=False)
        )

    async def post(self, obj: Mapping[str, Any]) -> Object:
        owner = (FIELD_MANAGER, "Update", "")
        return await self._call("post", identify(obj), lambda: self._storage.add(obj, owner))

    async def replace(self, obj: Mapping[str, Any]) -> Object:
        return await self._call(
            "replace", identify(obj), lambda: self._storage.replace(obj, editor=FIELD_MANAGER)
        )

    async def merge_patch(
        self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> Object:
        where = (kind, namespace, name)
        return await self._call(
            "merge_patch",
            where,
            lambda: self._storage.patch(where, patch, editor=FIELD_MANAGER, status=False),
        )

    # What tests do to it, without a request

    def watch(self, callback: Callable[[EventType, Object], None]) -> None:
        """Call back on every change, whoever makes it, as a watch of all kinds would."""
        self._storage.watchers.append(callback)

    def seed(self, obj: Mapping[str, Any], *, manager: str = "kubectl") -> Object:
        """Put an object there as another client would, status included."""
        where = identify(obj)
        made = self._storage.add(obj, (manager, "Update", ""))
        if "status" in obj and where[0] in WITH_STATUS:
            return self._storage.patch(where, {"status": obj["status"]}, editor=manager)
        return made

    def edit(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        manager: str = "kubectl",
    ) -> Object:
        """Merge-patch an object, status included, as another client would."""
        return self._storage.patch((kind, namespace, name), patch, editor=manager)

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete an object at once, as if by force and by another client."""
        self._storage.drop((kind, namespace, name))

    def peek(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The object now."""
        return self._storage.get((kind, namespace, name))

    def all(self, kind: Kind) -> Sequence[Object]:
        """Every object of a kind, sorted by namespace and name."""
        return self._storage.list(kind, "", "")

    @property
    def writes(self) -> Sequence[Request]:
        """The requests that were writes."""
        return [request for request in self.requests if request.writes]

    def stop_at(self, index: int, when: When) -> None:
        """End the process before or after the call of this index is carried out."""
        self.faults.append(
            lambda request, at: Stopped() if (request.index, at) == (index, when) else None
        )

    def fail(
        self,
        failure: Exception,
        *,
        verb: str = "",
        kind: Kind | None = None,
        name: str = "",
        times: int = 1,
        when: When = "before",
    ) -> None:
        """Make the next ``times`` matching calls raise; an empty criterion matches all."""
        left = times

        def fault(request: Request, at: When) -> Exception | None:
            nonlocal left
            hit = (
                left > 0
                and at == when
                and verb in ("", request.verb)
                and kind in (None, request.kind)
                and name in ("", request.name)
            )
            left -= hit
            return failure if hit else None

        self.faults.append(fault)

    def collect_garbage(self) -> Sequence[str]:
        """Delete what only objects that are gone own; returns ``Kind/name`` of what went."""
        return self._storage.collect_garbage()

    def run_statefulsets(self, ready: Callable[[Object], bool] = lambda _: True) -> None:
        """Play the StatefulSet controller, the scheduler and the kubelets, once.

        ``ready`` says of a pod that runs whether its probe passes.
        """
        fake_workloads.run_statefulsets(self._storage, lost_nodes=self.lost_nodes, ready=ready)

    def run_jobs(self, answer: fake_jobs.Answer) -> None:
        """Play the Job controller and the kubelets of its pods, once.

        ``answer`` says with which termination message a Job's pod ends, None while it runs.
        """
        fake_jobs.run_jobs(self._storage, answer=answer)

    async def _call(self, verb: str, where: Id, work: Callable[[], Answer]) -> Answer:
        await asyncio.sleep(0)
        request = Request(len(self.requests), verb, *where)
        self.requests.append(request)
        self._strike(request, "before")
        if where[0] not in self.served:
            raise error(404, "NotFound", "the server could not find the requested resource")
        answer = work()
        self._strike(request, "after")
        return answer

    def _strike(self, request: Request, when: When) -> None:
        for fault in self.faults:
            if (failure := fault(request, when)) is not None:
                raise failure

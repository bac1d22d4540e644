"""The state of the in-memory API server: objects, versions, field ownership, preconditions."""

import pickle
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from kvtier.cluster import fieldsets
from kvtier.cluster.protocol import (
    FIELD_MANAGER,
    JOB,
    POD,
    STATEFULSET,
    TIER,
    TRAFFIC_POLICY,
    ApiError,
    Kind,
    Object,
    error_for,
    kind_of,
)
from kvtier.reconcile.clock import Clock

T = TypeVar("T")
EventType = Literal["ADDED", "MODIFIED", "DELETED"]
Id = tuple[Kind, str, str]
Owner = tuple[str, str, str]
"""Field manager, operation, subresource."""

WITH_STATUS = (TIER, STATEFULSET, POD, JOB, TRAFFIC_POLICY)
_WITH_GENERATION = WITH_STATUS
_MUTABLE_STATEFULSET_SPEC = {
    "minReadySeconds",
    "ordinals",
    "persistentVolumeClaimRetentionPolicy",
    "replicas",
    "revisionHistoryLimit",
    "template",
    "updateStrategy",
}


class Storage:
    """What etcd and the registry of a real API server do. Every method is one transaction."""

    def __init__(self, *, clock: Clock) -> None:
        self.watchers: list[Callable[[EventType, Object], None]] = []
        self._clock = clock
        self._objects: dict[Id, Object] = {}
        self._owned: dict[Id, dict[Owner, set[fieldsets.Path]]] = {}
        self._version = 100

    def timestamp(self) -> str:
        """Now, as Kubernetes writes it."""
        return self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def get(self, where: Id) -> Object | None:
        return copied(self._objects.get(where))

    def list(self, kind: Kind, namespace: str, selector: str, *, fields: str = "") -> list[Object]:
        found = [
            where
            for where, obj in self._objects.items()
            if where[0] == kind
            and namespace in ("", where[1])
            and selects(selector, obj["metadata"].get("labels", {}))
            and _has_fields(obj, fields)
        ]
        return [copied(self._objects[where]) for where in sorted(found, key=lambda w: w[1:])]

    def add(self, obj: Mapping[str, Any], owner: Owner) -> Object:
        where = identify(obj)
        if where in self._objects:
            raise error(409, "AlreadyExists", f"{where[0].plural} {where[2]!r} already exists")
        new = copied(dict(obj))
        if where[0] in WITH_STATUS:
            new.pop("status", None)
        new["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": self.timestamp()}
        if where[0] in _WITH_GENERATION:
            new["metadata"]["generation"] = 1
        self._owned[where] = {owner: fieldsets.paths(new)}
        self._commit(where, new, "ADDED")
        return copied(new)

    def apply(
        self,
        obj: Mapping[str, Any],
        *,
        uid: str,
        resource_version: str | None = None,
        subresource: str,
    ) -> Object:
        where = identify(obj)
        live = self._objects.get(where)
        if live is None:
            raise error(409, "Conflict", f"{where[0].plural} {where[2]!r}: none has this uid")
        _expect(where, field="uid", expected=uid, live=live)
        if resource_version is not None:
            _expect(where, field="resourceVersion", expected=resource_version, live=live)
        intent = _intent(where[0], obj, subresource)
        me = (FIELD_MANAGER, "Apply", subresource)
        stated = fieldsets.paths(intent)
        owned = self._owned[where]
        others = [fields for owner, fields in owned.items() if owner != me]
        new = copied(live)
        for path in sorted(owned.get(me, set()) - stated, key=len):
            if not any(fieldsets.owned_below(fields, path) for fields in others):
                fieldsets.remove(new, path)
        fieldsets.merge(new, intent)
        _check_immutable(where, live, new)
        for path in stated:
            if fieldsets.lookup(new, path) != fieldsets.lookup(live, path):
                for fields in others:
                    fields.discard(path)
        owned[me] = stated
        return self._store(where, new)

    def replace(self, obj: Mapping[str, Any], *, editor: str) -> Object:
        where = identify(obj)
        live = self._live(where)
        version = obj["metadata"]["resourceVersion"]
        _expect(where, field="resourceVersion", expected=version, live=live)
        new = copied(dict(obj))
        for name in ("uid", "creationTimestamp", "generation", "deletionTimestamp"):
            if name in live["metadata"]:
                new["metadata"][name] = live["metadata"][name]
        if where[0] in WITH_STATUS and "status" in live:
            new["status"] = copied(live["status"])
        return self._store(where, new, editor=editor)

    def patch(
        self, where: Id, patch: Mapping[str, Any], *, editor: str, status: bool = True
    ) -> Object:
        """Merge-patch; ``status`` False leaves the status alone where it is a subresource."""
        live = self._live(where)
        for field in ("uid", "resourceVersion"):
            if (expected := patch.get("metadata", {}).get(field)) is not None:
                _expect(where, field=field, expected=expected, live=live)
        if not status and where[0] in WITH_STATUS:
            patch = {name: value for name, value in patch.items() if name != "status"}
        return self._store(where, _merge_patch(live, patch), editor=editor)

    def delete(
        self,
        where: Id,
        *,
        uid: str,
        resource_version: str | None = None,
        graceful: bool = True,
    ) -> None:
        live = self._objects.get(where)
        if live is None:
            return
        _expect(where, field="uid", expected=uid, live=live)
        if resource_version is not None:
            _expect(where, field="resourceVersion", expected=resource_version, live=live)
        on_a_node = where[0] == POD and live.get("spec", {}).get("nodeName")
        if not (graceful and on_a_node) and not live["metadata"].get("finalizers"):
            self.drop(where)
            return
        mark: dict[str, Any] = {}
        if "deletionTimestamp" not in live["metadata"]:
            mark["deletionTimestamp"] = self.timestamp()
        if not graceful:
            mark["deletionGracePeriodSeconds"] = 0
        if mark:
            self.patch(where, {"metadata": mark}, editor="apiserver")

    def drop(self, where: Id) -> None:
        """Take an object out at once."""
        gone = copied(self._live(where))
        del self._objects[where], self._owned[where]
        self._version += 1
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._tell("DELETED", gone)

    def collect_garbage(self) -> Sequence[str]:
        gone: Sequence[str] = ()
        while True:
            uids = {obj["metadata"]["uid"] for obj in self._objects.values()}
            orphans = [
                where
                for where, obj in self._objects.items()
                if (owners := obj["metadata"].get("ownerReferences"))
                and not any(owner["uid"] in uids for owner in owners)
            ]
            if not orphans:
                return gone
            for where in orphans:
                gone = (*gone, f"{where[0].kind}/{where[2]}")
                self.drop(where)

    def _live(self, where: Id) -> Object:
        live = self._objects.get(where)
        if live is None:
            raise error(404, "NotFound", f"{where[0].plural} {where[2]!r} not found")
        return live

    def _store(self, where: Id, new: Object, *, editor: str | None = None) -> Object:
        """Write a new state if it is one; an editor takes over the fields that it changes."""
        live = self._live(where)
        new["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
        if new != live:
            _check_immutable(where, live, new)
            if editor is not None:
                self._take_over(where, new, editor)
            if where[0] in _WITH_GENERATION and _body(new) != _body(live):
                new["metadata"]["generation"] += 1
            self._commit(where, new, "MODIFIED")
        return copied(new)

    def _take_over(self, where: Id, new: Object, editor: str) -> None:
        live = self._objects[where]
        parts = [name for name in live.keys() | new.keys() if live.get(name) != new.get(name)]
        before, after = (
            fieldsets.paths({name: obj[name] for name in parts if name in obj})
            for obj in (live, new)
        )
        changed = {
            path
            for path in before | after
            if fieldsets.lookup(live, path) != fieldsets.lookup(new, path)
        }
        owned = self._owned[where]
        for fields in owned.values():
            fields -= {path for path in changed if path not in after or _is_leaf(new, path)}
        owned.setdefault((editor, "Update", ""), set()).update(changed & after)

    def _commit(self, where: Id, new: Object, event: EventType) -> None:
        self._version += 1
        new["metadata"]["resourceVersion"] = str(self._version)
        self._objects[where] = copied(new)
        self._tell(event, new)

    def _tell(self, event: EventType, obj: Object) -> None:
        for watcher in self.watchers:
            watcher(event, copied(obj))


def copied(value: T) -> T:
    """A deep copy of JSON; copy.deepcopy takes ten times as long."""
    copy: T = pickle.loads(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
    return copy


def identify(obj: Mapping[str, Any]) -> Id:
    """Kind, namespace and name of an object."""
    metadata = obj["metadata"]
    return kind_of(obj), metadata.get("namespace", ""), metadata["name"]


def error(status: int, reason: str, message: str) -> ApiError:
    """The typed error, positional for brevity."""
    return error_for(status=status, reason=reason, message=message)


def _has_fields(obj: Object, selector: str) -> bool:
    """Terms of the form ``path=value``, as the API server knows them."""
    pairs = (term.split("=", 1) for term in selector.split(",") if term)
    return all(fieldsets.lookup(obj, tuple(path.split("."))) == value for path, value in pairs)


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether a label selector of equalities and existence matches."""
    for term in filter(None, (part.strip() for part in selector.split(","))):
        name, operator, value = term.replace("==", "=").partition("=")
        if not operator:
            matches = name[1:] not in labels if name.startswith("!") else name in labels
        elif name.endswith("!"):
            matches = labels.get(name[:-1]) != value
        else:
            matches = labels.get(name) == value
        if not matches:
            return False
    return True


def _expect(where: Id, *, field: str, expected: str, live: Object) -> None:
    found = live["metadata"][field]
    if found != expected:
        message = f"{where[0].plural} {where[2]!r}: {field} is {found}, not {expected}"
        raise error(409, "Conflict", message)


def _intent(kind: Kind, obj: Mapping[str, Any], subresource: str) -> Object:
    """What an apply states: without what only the server writes, and only its subresource."""
    if subresource:
        return {subresource: copied(obj.get(subresource, {}))}
    server = ("uid", "resourceVersion", "generation", "creationTimestamp")
    intent = {name: copied(value) for name, value in obj.items()}
    intent["metadata"] = {k: v for k, v in intent["metadata"].items() if k not in server}
    if kind in WITH_STATUS:
        intent.pop("status", None)
    return intent


def _body(obj: Object) -> Object:
    return {name: value for name, value in obj.items() if name not in ("metadata", "status")}


def _is_leaf(obj: Object, path: fieldsets.Path) -> bool:
    return not isinstance(fieldsets.lookup(obj, path), dict)


def _check_immutable(where: Id, live: Object, new: Object) -> None:
    if where[0] != STATEFULSET:
        return
    before, after = live.get("spec", {}), new.get("spec", {})
    for name in sorted((before.keys() | after.keys()) - _MUTABLE_STATEFULSET_SPEC):
        if before.get(name) != after.get(name):
            message = f"StatefulSet.apps {where[2]!r} is invalid: spec.{name}: Forbidden"
            raise error(422, "Invalid", message)


def _merge_patch(target: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return copied(patch)
    result = copied(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge_patch(result.get(name), value)
    return result

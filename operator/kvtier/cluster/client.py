"""The Kubernetes protocol over ``kubernetes.aio``: raw JSON, typed errors, bounded requests."""

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from kvtier import __version__
from kvtier.cluster.protocol import (
    CONFIGMAP,
    FIELD_MANAGER,
    LEASE,
    POD,
    AlreadyExists,
    ApiError,
    Conflict,
    Invalid,
    Kind,
    NotFound,
    Object,
    Unavailable,
    error_for,
    kind_of,
)
from kvtier.cluster.watches import OnRelist, OnRequest, watch_session

IN_FLIGHT = 32
TIMEOUT = 10.0
PAGE_SIZE = 500

JSON = "application/json"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"

# No object ever has it, so an apply that names it creates or fails: it cannot change anything.
_NO_VERSION = "1"

_Objects = list[Object]


class AioCluster:
    """Implements ``cluster.protocol.Cluster``. Close it, or use ``cluster.connect.connect``.

    At most ``in_flight`` requests run at once, each for at most ``timeout`` seconds. Nothing is
    retried here: whoever asked knows whether asking again makes sense.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        field_manager: str = FIELD_MANAGER,
        in_flight: int = IN_FLIGHT,
        timeout: float = TIMEOUT,
        page_size: int = PAGE_SIZE,
        on_request: OnRequest | None = None,
    ) -> None:
        configuration.connection_pool_maxsize = in_flight + 1
        self._api = ApiClient(configuration)
        self._host = configuration.host.rstrip("/")
        self._manager = {"fieldManager": field_manager}
        self._slots = asyncio.Semaphore(in_flight)
        self._seconds = timeout
        self._writes_end_in: Callable[[], float] = lambda: math.inf
        self._page_size = page_size
        self._on_request = on_request

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    def bound_writes(self, end_in: Callable[[], float]) -> None:
        """Give up every write, but of Leases, once ``end_in()`` seconds have passed.

        Without an answer by then the connection is closed, so that what was still on its way does
        not land under the next holder of the Lease.
        """
        self._writes_end_in = end_in

    @property
    def server(self) -> str:
        """URL of the API server."""
        return str(self._host)

    def watch_session(self, *, on_relist: OnRelist) -> aiohttp.ClientSession:
        """A session for watches: the same server, the same credentials. Close it."""
        return watch_session(self._api, on_relist=on_relist, on_request=self._on_request)

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        try:
            return await self._call("get", kind, kind.path(namespace, name))
        except NotFound as error:
            if _names_an_object(error):
                return None
            raise

    async def list(
        self, kind: Kind, namespace: str, label_selector: str = "", *, field_selector: str = ""
    ) -> list[Object]:
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        try:
            return await self._list(kind, namespace, selectors)
        except ApiError as error:
            if error.status != 410:
                raise
        # The snapshot behind the continue token was compacted away: begin again, once.
        return await self._list(kind, namespace, selectors)

    async def read(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """The answer to a GET of any path, such as a pod's log. Raises as ``get`` does."""
        url = self._host + path + (f"?{urlencode(query)}" if query else "")
        async with self._slots:
            status, headers, raw = await self._send("GET", url, JSON, None, seconds=self._seconds)
        if status >= 400:
            _answer(POD, status=status, headers=headers, raw=raw)
        return raw

    async def create(self, obj: Mapping[str, Any]) -> Object:
        metadata = {**obj["metadata"], "resourceVersion": _NO_VERSION}
        metadata.pop("uid", None)
        try:
            return await self._apply("create", {**obj, "metadata": metadata})
        except Conflict as error:
            raise AlreadyExists(status=409, reason="AlreadyExists", message=_taken(obj)) from error

    async def apply(
        self, obj: Mapping[str, Any], *, uid: str, resource_version: str | None = None
    ) -> Object:
        return await self._apply_to("apply", obj, uid, resource_version)

    async def apply_status(self, obj: Mapping[str, Any], *, uid: str) -> Object:
        names = ("name", "namespace")
        metadata = {name: obj["metadata"][name] for name in names if name in obj["metadata"]}
        status = {name: obj[name] for name in ("apiVersion", "kind", "status") if name in obj}
        return await self._apply_to("apply_status", {**status, "metadata": metadata}, uid)

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str | None = None,
    ) -> None:
        expected = {"uid": uid}
        if resource_version is not None:
            expected["resourceVersion"] = resource_version
        await self._delete("delete", kind.path(namespace, name), kind, preconditions=expected)

    async def force_delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        await self._delete(
            "force_delete",
            kind.path(namespace, name),
            kind,
            preconditions={"uid": uid},
            gracePeriodSeconds=0,
        )

    async def post(self, obj: Mapping[str, Any]) -> Object:
        kind = kind_of(obj)
        path = kind.path(obj["metadata"].get("namespace", ""))
        return await self._call("post", kind, path, body=obj, query=self._manager)

    async def replace(self, obj: Mapping[str, Any]) -> Object:
        if not obj["metadata"].get("resourceVersion"):
            raise ValueError("metadata.resourceVersion: replace needs the version that was read")
        kind, path = _target(obj)
        return await self._call("replace", kind, path, body=obj, query=self._manager)

    async def merge_patch(
        self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> Object:
        path = kind.path(namespace, name)
        return await self._call("merge_patch", kind, path, body=patch, query=self._manager)

    async def _list(self, kind: Kind, namespace: str, selectors: Mapping[str, str]) -> _Objects:
        found: _Objects = []
        given = {name: selector for name, selector in selectors.items() if selector}
        query = {"limit": str(self._page_size), **given}
        while True:
            page = await self._call("list", kind, kind.path(namespace), query=query)
            found += [_described(item, kind) for item in page.get("items") or []]
            token = page["metadata"].get("continue")
            if not token:
                return found
            query["continue"] = token

    async def _apply_to(
        self, verb: str, obj: Mapping[str, Any], uid: str, version: str | None = None
    ) -> Object:
        if not uid:
            raise ValueError("uid: apply needs the uid of the object that was read")
        metadata = {**obj["metadata"], "uid": uid}
        metadata.pop("resourceVersion", None)
        if version is not None:
            metadata["resourceVersion"] = version
        try:
            return await self._apply(verb, {**obj, "metadata": metadata})
        except Invalid as error:
            if "metadata.uid" in error.fields:
                raise Conflict(
                    status=409, reason="Conflict", message=f"{error.message} (another object)"
                ) from error
            raise

    async def _apply(self, verb: str, body: Mapping[str, Any]) -> Object:
        kind, path = _target(body)
        if verb == "apply_status":
            path += "/status"
        return await self._call(
            verb, kind, path, body=body, query={**self._manager, "force": "true"}
        )

    async def _delete(self, verb: str, path: str, kind: Kind, **options: Any) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            **options,
        }
        try:
            await self._call(verb, kind, path, body=body)
        except NotFound as error:
            if not _names_an_object(error):
                raise

    async def _call(
        self,
        verb: str,
        kind: Kind,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Object:
        method, content_type = _METHODS[verb]
        url = self._host + path + (f"?{urlencode(query)}" if query else "")
        # The Lease waits for nobody: late, it stops everything.
        async with nullcontext() if kind == LEASE else self._slots:
            started, status = time.monotonic(), 0
            seconds = self._seconds
            if method != "GET" and kind != LEASE:
                seconds = min(seconds, self._writes_end_in())
            if seconds <= 0:
                message = "the lease is not held"
                raise Unavailable(status=0, reason="NotLeading", message=message)
            try:
                status, headers, raw = await self._send(
                    method, url, content_type, body, seconds=seconds
                )
            finally:
                if self._on_request is not None:
                    self._on_request(verb, kind.kind, status, time.monotonic() - started)
        return _answer(kind, status=status, headers=headers, raw=raw)

    async def _send(
        self,
        method: str,
        url: str,
        content_type: str,
        body: Mapping[str, Any] | None,
        *,
        seconds: float,
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {
            # Logs are text.
            "Accept": f"{JSON}, */*",
            "Content-Type": content_type,
            "User-Agent": f"kvtier/{__version__}",
        }
        try:
            # Each time, since the token of a pod is replaced while it runs.
            await self._api.update_params_for_auth(headers, [], ["BearerToken"], url, method, body)
            response = await self._api.call_api(
                method,
                url,
                headers,
                body,
                _request_timeout=aiohttp.ClientTimeout(total=seconds),
            )
            return response.status, response.headers, await response.read()
        except TimeoutError as error:
            message = f"{self._host} did not answer within {seconds:.3g} s"
            raise Unavailable(status=0, reason="Timeout", message=message) from error
        except (aiohttp.ClientError, OSError) as error:
            message = f"{self._host} cannot be reached: {error}"
            raise Unavailable(status=0, reason="Unreachable", message=message) from error


_METHODS = {
    "get": ("GET", JSON),
    "list": ("GET", JSON),
    "create": ("PATCH", APPLY),
    "apply": ("PATCH", APPLY),
    "apply_status": ("PATCH", APPLY),
    "delete": ("DELETE", JSON),
    "force_delete": ("DELETE", JSON),
    "post": ("POST", JSON),
    "replace": ("PUT", JSON),
    "merge_patch": ("PATCH", MERGE),
}


def _target(obj: Mapping[str, Any]) -> tuple[Kind, str]:
    kind, metadata = kind_of(obj), obj["metadata"]
    return kind, kind.path(metadata.get("namespace", ""), metadata["name"])


def _taken(obj: Mapping[str, Any]) -> str:
    return f"{kind_of(obj).plural} {obj['metadata']['name']!r} already exists"


def _described(item: Object, kind: Kind) -> Object:
    """Items of a list do not say what they are; managedFields are most of their size."""
    managed = item["metadata"].pop("managedFields", None) or ()
    times = [each["time"] for each in managed if "time" in each]
    if kind is CONFIGMAP and times:
        item["metadata"]["managedFields"] = [{"time": max(times)}]
    return {"apiVersion": kind.api_version, "kind": kind.kind, **item}


def _answer(kind: Kind, *, status: int, headers: Mapping[str, str], raw: bytes) -> Object:
    try:
        parsed = json.loads(raw)
    except ValueError:
        parsed = None
    if status < 400 and isinstance(parsed, dict):
        if "items" in parsed or parsed.get("kind") == "Status":
            return parsed
        return _described(parsed, kind)
    if status < 400:
        message = f"the answer to a request for {kind.plural} is no JSON object"
        raise Unavailable(status=status, reason="BadAnswer", message=message)
    said = parsed if isinstance(parsed, dict) else {}
    details = said.get("details") or {}
    raise error_for(
        status=status,
        reason=said.get("reason") or "Unknown",
        message=said.get("message") or raw.decode(errors="replace").strip()[:1024],
        retry_after=_retry_after(headers, details),
        fields=tuple(c["field"] for c in details.get("causes") or [] if "field" in c),
        name=details.get("name", ""),
    )


def _retry_after(headers: Mapping[str, str], details: Mapping[str, Any]) -> float | None:
    for value in (headers.get("Retry-After"), details.get("retryAfterSeconds")):
        try:
            return max(float(value), 0.0)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
    return None


def _names_an_object(error: NotFound) -> bool:
    """A resource type that is not served is a 404 too, but one that names no object."""
    return bool(error.name)

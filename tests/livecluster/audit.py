"""The API server's audit log: who asked for what, at metadata level."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class Request:
    """One request that was answered. ``resource`` has its subresource behind a slash; ``pod`` is
    the one whose token was shown, if it was a pod's."""

    user: str
    pod: str
    verb: str
    resource: str
    namespace: str
    name: str
    code: int
    denied: bool
    at: str
    uri: str

    @property
    def is_write(self) -> bool:
        return self.verb in WRITES

    def __str__(self) -> str:
        return f"{self.at} {self.verb} {self.resource} {self.namespace}/{self.name}: {self.code}"


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the log."""

    inode: int
    offset: int


class AuditLog:
    """The file is appended to before a request is answered, so that reading it lacks nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def mark(self) -> Mark:
        """Where the log ends now."""
        status = self._path.stat()
        return Mark(inode=status.st_ino, offset=status.st_size)

    def between(self, begin: Mark, end: Mark, *, user: str) -> list[Request]:
        """Every request of one user that was answered meanwhile; a watch counts when it ends."""
        assert begin.inode == end.inode, "the audit log was rotated meanwhile"
        with self._path.open("rb") as log:
            log.seek(begin.offset)
            content = log.read(end.offset - begin.offset)
        # A line that is still being written has no end yet.
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        wanted = f'"username":"{user}"'.encode()
        events = (json.loads(line) for line in lines if wanted in line)
        return [_request(event) for event in events if event["stage"] == "ResponseComplete"]


def _request(event: dict[str, object]) -> Request:
    target = event.get("objectRef") or {}
    status = event.get("responseStatus") or {}
    user = event["user"]
    annotations = event.get("annotations") or {}
    assert isinstance(target, dict)
    assert isinstance(status, dict)
    assert isinstance(user, dict)
    assert isinstance(annotations, dict)
    extra = user.get("extra") or {}
    sub = target.get("subresource")
    return Request(
        user=user["username"],
        pod="".join(extra.get("authentication.kubernetes.io/pod-name", [])),
        verb=str(event["verb"]),
        resource=target.get("resource", "") + (f"/{sub}" if sub else ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=status.get("code", 0),
        denied=annotations.get("authorization.k8s.io/decision") == "forbid",
        at=str(event["requestReceivedTimestamp"]),
        uri=str(event["requestURI"]),
    )


def described(requests: list[Request], *, keep: Callable[[Request], bool]) -> str:
    """The requests that ``keep`` keeps, one a line, for the message of a failing test."""
    return "\n".join(str(request) for request in requests if keep(request))

"""Whether a token or a private key of the session turned up outside of a Secret.

Files that vanish (logs of deleted pods, arguments of processes that end) are read all the time by a
thread; what describes a namespace is read when a test is done with it; the rest at the end.
"""

import base64
import glob
import json
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from kvtier.redact import TOKEN_PREFIX
from livecluster.api import Api, Object

KINDS = "kvt,statefulsets,pods,services,configmaps,secrets,events"
LISTED = ("kvcachetiers", "events", "pods", "statefulsets", "services", "configmaps")
POLL_SECONDS = 1.0
KEY_HEADER = "PRIVATE KEY-----"
TOKEN = re.compile(rf"{TOKEN_PREFIX}([0-9a-f]{{16,}})".encode())


def _in_base64(text: str) -> list[bytes]:
    """How the text looks inside base64, wherever in it: without the ends that depend on what is
    around it."""
    forms = []
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + text.encode())
        first = (before * 8 + 5) // 6
        whole = (before + len(text)) * 8 // 6
        forms.append(encoded[first:whole])
    return forms


_SHAPES = re.compile(
    b"|".join(
        [
            TOKEN.pattern,
            *(re.escape(form) + b"[0-9A-Za-z+/]{24,}" for form in _in_base64(TOKEN_PREFIX)),
            b"-----BEGIN [A-Z ]*" + KEY_HEADER.encode(),
            *(re.escape(form) for form in _in_base64(KEY_HEADER)),
        ]
    )
)


class Needles:
    """What must not be found: whatever has the form of a token or of a private key, and the random
    part of each token that was really made, in case something takes its prefix off."""

    def __init__(self) -> None:
        self.tokens: set[str] = set()

    def learn(self, secrets: Iterable[Object]) -> None:
        """Take the tokens out of Secrets as the API server gives them."""
        for secret in secrets:
            for value in (secret.get("data") or {}).values():
                found = TOKEN.findall(base64.b64decode(value))
                self.tokens |= {token.decode() for token in found}

    def search(self, text: bytes) -> str:
        """Empty, or what was found, without giving it away again."""
        if shape := _SHAPES.search(text):
            return f"{shape[0][:8].decode()}... at byte {shape.start()}"
        for token in self.tokens:
            for form in (token.encode(), *_in_base64(token)):
                if form in text:
                    return f"a token without its prefix at byte {text.index(form)}"
        return ""


@dataclass(slots=True)
class Leaks:
    """Collects texts in ``kept`` and looks through them and the instance's files.

    ``facts`` are those of the instance.
    """

    facts: Mapping[str, Any]
    api: Api
    kept: Path
    needles: Needles = field(default_factory=Needles)
    seen: dict[str, int] = field(default_factory=dict)
    """By kind of text: how many bytes were kept."""
    began: float = field(default_factory=time.time)
    _offsets: dict[tuple[Path, int], int] = field(default_factory=dict)
    _arguments: set[bytes] = field(default_factory=set)

    def keep(self, kind: str, text: str | bytes) -> None:
        """Keep a text for the search at the end."""
        raw = text.encode() if isinstance(text, str) else text
        self._append(kind, raw + b"\n", kind=kind)

    def _append(self, name: str, raw: bytes, *, kind: str) -> None:
        self.seen[kind] = self.seen.get(kind, 0) + len(raw)
        self.kept.mkdir(parents=True, exist_ok=True)
        with (self.kept / name).open("ab") as file:
            file.write(raw)

    def keep_namespace(self, namespace: str, *, described: str) -> None:
        """Its objects, and what ``kubectl describe`` made of them. Learns its tokens."""
        self.needles.learn(self.api.list("secrets", namespace))
        for plural in LISTED:
            self.keep(f"objects-{plural}", json.dumps(self.api.list(plural, namespace)))
        self.keep("described", described)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Read what vanishes, until the end."""
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(POLL_SECONDS):
                self.look()

        thread = threading.Thread(target=run, name="leaks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def look(self) -> None:
        """Keep what is new in the logs of containers and among the arguments of processes."""
        for process in Path("/proc").glob("[0-9]*"):
            arguments = _read(process / "cmdline")
            if arguments and arguments not in self._arguments:
                self._arguments.add(arguments)
                self.keep("arguments", arguments)
        # Not pathlib's glob: it raises where a pod's directory goes while it reads along.
        for name in glob.iglob(f"{self.facts['state']}/*/log/pods/*/*/*.log"):  # noqa: PTH207
            log = Path(name)
            inode, size = _identity(log)
            begin = self._offsets.get((log, inode), 0)
            if begin > size:
                # Rotated: it begins anew.
                begin = 0
            text = _read(log, begin)
            if text:
                self._offsets[log, inode] = begin + len(text)
                # A file for each log: a token that one look cut in two is whole again there.
                kind = f"log-{log.parent.name}"
                self._append(f"{kind}-{sha256(bytes(log)).hexdigest()[:12]}", text, kind=kind)

    def found(self, *more: Path) -> list[str]:
        """One line for each place with a token or a key: in what was kept, in the instance's own
        logs and audit log, and in the files below ``more`` that the session wrote."""
        self.look()
        state = Path(self.facts["state"])
        files = [*self.kept.iterdir(), *state.glob("logs/*.log"), *state.glob("audit*.log")]
        for directory in more:
            files += [path for path in directory.rglob("*") if self._is_of_the_session(path)]
        return [
            f"{file}: {hit}"
            for file in files
            if "logs" not in file.parts or file.suffix == ".log"
            if (hit := self.needles.search(_read(file)))
        ]

    def _is_of_the_session(self, path: Path) -> bool:
        """Not what unit tests of the same run made before: they give real servers ACL files."""
        return path.is_file() and path.stat().st_mtime >= self.began


def _identity(file: Path) -> tuple[int, int]:
    """Its inode and size."""
    try:
        state = file.stat()
    except OSError:
        return 0, 0
    return state.st_ino, state.st_size


def _read(file: Path, begin: int = 0) -> bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(begin)
            return stream.read()
    except OSError:
        # Gone meanwhile.
        return b""

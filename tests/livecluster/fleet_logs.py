"""What the engines of a fleet told, those included that are gone by now.

Logs are read where the nodes of a local cluster write them: a file that is open can be read to its
end after the kubelet has deleted it, and no partition and no dead node is in between.
"""

import glob
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from livecluster.fleet_told import Told

POLL_SECONDS = 0.2
LINE = re.compile(rb"\S+ (?P<stream>stdout|stderr) F (?P<text>.*)\n")


@dataclass(slots=True)
class FleetLogs:
    """Logs of one Deployment's pods. ``state`` is the instance's directory."""

    state: Path
    namespace: str
    deployment: str
    complaints: list[str] = field(default_factory=list)
    """Lines of standard error, by pod."""
    _files: dict[int, tuple[str, BinaryIO]] = field(default_factory=dict)
    """Of each log its container and what reads it, by inode: rotated files keep theirs."""
    _rest: dict[int, bytes] = field(default_factory=dict)
    _told: dict[tuple[str, int], Told] = field(default_factory=dict)
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Open what appears, until the end; then what was open has been read to its end."""
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(POLL_SECONDS):
                self.look()

        thread = threading.Thread(target=run, name=f"fleet-{self.deployment}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.look()
            self.close()

    def close(self) -> None:
        """Nothing new is read any more; what was read stays."""
        with self._lock:
            self._closed = True
            for _, file in self._files.values():
                file.close()
            self._files.clear()

    def look(self) -> list[Told]:
        """The last that was told of each stretch by now, in the order they began."""
        with self._lock:
            if not self._closed:
                self._open_new()
            for inode, (container, file) in self._files.items():
                self._read(inode, container, file.read())
            return sorted(self._told.values(), key=lambda told: (told.began, told.pod))

    def _open_new(self) -> None:
        pod = re.compile(rf"{self.namespace}_{self.deployment}-[0-9a-z]+-[0-9a-z]+_[0-9a-f-]+")
        # Not pathlib's glob: it raises where a pod's directory goes while it reads along.
        for name in glob.iglob(f"{self.state}/*/log/pods/{self.namespace}_*/*/*.log"):  # noqa: PTH207
            path = Path(name)
            directory = path.parent.parent.name
            if not pod.fullmatch(directory):
                continue
            with suppress(FileNotFoundError):
                inode = path.stat().st_ino
                if inode not in self._files:
                    # The directory has the pod's UID, the file's name counts restarts.
                    container = f"{directory}/{path.name.partition('.')[0]}"
                    self._files[inode] = container, path.open("rb")

    def _read(self, inode: int, container: str, text: bytes) -> None:
        text = self._rest.get(inode, b"") + text
        end = text.rfind(b"\n") + 1
        self._rest[inode] = text[end:]
        for line in LINE.finditer(text[:end]):
            said = line["text"].decode()
            if line["stream"] == b"stdout":
                told = Told.parse(said)
                self._told[container, told.stretch] = told
            else:
                self.complaints.append(f"{container}: {said}")

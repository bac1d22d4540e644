"""Which processes are ours. A process id alone proves nothing: ids are used again."""

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from .errors import ClusterError

PF_EXITING = 0x4
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the instance. `started`: clock ticks since boot, from /proc/PID/stat."""

    name: str
    pid: int
    started: int
    boot: str

    @property
    def alive(self) -> bool:
        """It runs, and is not on its way out."""
        return self._is_there(exiting=False)

    @property
    def gone(self) -> bool:
        """It has ended. A machine's first process is there until the last of the others is."""
        return not self._is_there(exiting=True)

    def _is_there(self, *, exiting: bool) -> bool:
        return (
            self.boot == BOOT_ID.read_text().strip()
            and _started(self.pid, exiting=exiting) == self.started
        )


def _started(pid: int, *, exiting: bool = False) -> int | None:
    """When that process started; None if there is none, and for one that is ending unless asked."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX" or (int(fields[6]) & PF_EXITING and not exiting):
        return None
    return int(fields[19])


class Records:
    """The processes that an instance started, one JSON file each, so that a crash loses none."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def add(self, *, name: str, pid: int) -> Process:
        started = _started(pid)
        if started is None:
            raise ClusterError(f"{name} ended as soon as it was started")
        process = Process(name, pid, started, BOOT_ID.read_text().strip())
        self._directory.mkdir(parents=True, exist_ok=True)
        file = self._directory / f"{name}.json"
        unfinished = file.with_suffix(".new")
        unfinished.write_text(
            json.dumps({"pid": pid, "started": started, "boot": process.boot}) + "\n"
        )
        unfinished.rename(file)
        return process

    def get(self, name: str) -> Process | None:
        """The process of that name if it is recorded and alive."""
        process = self._read(self._directory / f"{name}.json")
        return process if process and process.alive else None

    def all(self) -> list[Process]:
        """Every recorded process, dead or alive."""
        found = [self._read(file) for file in sorted(self._directory.glob("*.json"))]
        return [process for process in found if process]

    def forget(self, name: str) -> None:
        (self._directory / f"{name}.json").unlink(missing_ok=True)

    @staticmethod
    def _read(file: Path) -> Process | None:
        try:
            row = json.loads(file.read_text())
            return Process(file.stem, row["pid"], row["started"], row["boot"])
        except (FileNotFoundError, ValueError, KeyError):
            return None


def find_by_title(titles: list[str]) -> list[Process]:
    """Processes that run under one of these names (their argv[0]), recorded or not."""
    boot = BOOT_ID.read_text().strip()
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            title = (directory / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        except OSError:
            continue
        started = _started(int(directory.name))
        if title in titles and started is not None:
            found.append(Process(title, int(directory.name), started, boot))
    return found


def kill(processes: list[Process], *, seconds: float = 10.0) -> None:
    """SIGKILL these processes, those still alive, and wait until they are gone."""
    for process in processes:
        if process.alive:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    deadline = time.monotonic() + seconds
    while left := [process for process in processes if not process.gone]:
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{left[0].name} (pid {left[0].pid}) does not die: see /proc/{left[0].pid}/stack"
            )
        time.sleep(0.02)

"""What a trial has left: processes, by what all of them inherit, and files."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

GONE_SECONDS = 20.0


def processes(place: Path) -> dict[int, str]:
    """Command lines of all processes of trials whose TMPDIR is ``place``."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            if _is_of(entry, place):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(entry.name)] = line
    return found


def _is_of(entry: Path, place: Path) -> bool:
    if f"TMPDIR={place}".encode() in (entry / "environ").read_bytes().split(b"\0"):
        return True
    # A server writes its title over its environment; its output goes to a file of the trial.
    return str((entry / "fd/1").readlink()).startswith(str(place))


def servers(place: Path) -> list[int]:
    """Without those that only say their version: nothing of the trial has begun then."""
    found = processes(place).items()
    return [pid for pid, line in found if "valkey-server" in line and "--version" not in line]


def until(true: Callable[[], object], *, seconds: float = GONE_SECONDS) -> bool:
    """Whether it became true in time."""
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(found)


def assert_nothing_left(place: Path) -> None:
    assert until(lambda: not processes(place)), processes(place)
    assert list(place.iterdir()) == []

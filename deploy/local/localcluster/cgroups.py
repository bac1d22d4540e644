"""The control groups below which the nodes' kubelets put their pods."""

import os
import signal
import time
from pathlib import Path

from .errors import ClusterError

ROOT = Path("/sys/fs/cgroup")


def _unified() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    """Root of every mounted hierarchy: one for version 2, one per controller for version 1."""
    if _unified():
        return [ROOT]
    return [path for path in sorted(ROOT.iterdir()) if path.is_dir() and not path.is_symlink()]


def create(path: str) -> None:
    """Make `path` (relative) in every hierarchy, ready for a kubelet's `cgroupRoot`."""
    for hierarchy in _hierarchies():
        current = hierarchy
        for part in Path(path).parts:
            if _unified():
                _delegate(current)
            child = current / part
            child.mkdir(exist_ok=True)
            # A new cpuset is empty, and no process may enter an empty one.
            for setting in ("cpuset.cpus", "cpuset.mems"):
                if hierarchy.name == "cpuset":
                    (child / setting).write_text((current / setting).read_text())
            current = child
        if _unified():
            _delegate(current)


def _delegate(directory: Path) -> None:
    available = (directory / "cgroup.controllers").read_text().split()
    (directory / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in available))


def remove(path: str, *, seconds: float = 10.0) -> None:
    """Kill whatever still runs below `path` and remove it from every hierarchy."""
    deadline = time.monotonic() + seconds
    for hierarchy in _hierarchies():
        top = hierarchy / path
        while top.exists():
            for directory, _, _ in os.walk(top, topdown=False):
                _kill_members(Path(directory))
                try:
                    Path(directory).rmdir()
                except OSError:
                    continue
            if time.monotonic() > deadline:
                raise ClusterError(f"{top} cannot be removed: its processes do not die")
            if top.exists():
                time.sleep(0.05)


def _kill_members(directory: Path) -> None:
    try:
        members = (directory / "cgroup.procs").read_text().split()
    except OSError:
        return
    for member in members:
        try:
            os.kill(int(member), signal.SIGKILL)
        except ProcessLookupError:
            continue

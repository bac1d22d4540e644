"""Giving a container of one cluster so little CPU that it is its own limit."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from livecluster.cluster import LiveCluster

CPU = Path("/sys/fs/cgroup/cpu")
LOOK_SECONDS = 0.05


@contextmanager
def starved(cluster: LiveCluster, argument: str, *, cores: float) -> Iterator[list[str]]:
    """Every container that starts meanwhile with this argument in its command line has so many
    cores. Yields the control groups of those that were found."""
    found: list[str] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(LOOK_SECONDS):
            for process in Path("/proc").glob("[0-9]*"):
                # Processes end while they are looked at.
                with suppress(OSError):
                    if argument.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                        _starve(process, cluster.facts["name"], cores=cores, found=found)

    looking = threading.Thread(target=look, name="starving", daemon=True)
    looking.start()
    try:
        yield found
    finally:
        done.set()
        looking.join()


def _starve(process: Path, cluster: str, *, cores: float, found: list[str]) -> None:
    lines = (process / "cgroup").read_text().splitlines()
    group = next(line.split(":", 2)[2] for line in lines if line.split(":")[1] == "cpu")
    if group.startswith(f"/kvtier-{cluster}/") and group not in found:
        period = int((CPU / group[1:] / "cpu.cfs_period_us").read_text())
        (CPU / group[1:] / "cpu.cfs_quota_us").write_text(str(int(cores * period)))
        found.append(group)

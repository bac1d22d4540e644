"""What memory this machine, or the container that this runs in, has left."""

import os
from contextlib import suppress
from pathlib import Path

_CGROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def available_memory(*, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that new processes can take: what the kernel calls available, within a container's
    limit. Where nothing tells, half of the machine's."""
    left = [int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2)]
    with suppress(OSError, ValueError, KeyError):
        lines = (proc / "meminfo").read_text("ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        left = [int(fields["MemAvailable"].split()[0]) * 1024]
    for limit, used in _CGROUP_FILES:
        with suppress(OSError, ValueError):
            bound = int((cgroup / limit).read_text("ascii"))
            left.append(bound - int((cgroup / used).read_text("ascii")))
    return max(0, min(left))

"""Was this process's own CPU the limit? What Linux counts, where it does."""

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Moment:
    """Seconds: of the monotonic clock, of CPU that this thread had, and for which it waited for
    one though it could have run."""

    at: float
    had: float
    waited: float

    @classmethod
    def now(cls) -> "Moment":
        waited = 0.0
        # Absent in some sandboxes; the CPU that was had says less, but enough on a free machine.
        with suppress(OSError, ValueError, IndexError):
            fields = (PROC / "thread-self/schedstat").read_text("ascii").split()
            waited = int(fields[1]) / 1e9
        return cls(at=time.monotonic(), had=time.thread_time(), waited=waited)

    def busy_since(self, before: "Moment") -> float:
        """The share of the time since then in which the thread ran or wanted to; the rest of the
        time it waited for bytes."""
        spent = self.at - before.at
        wanted = (self.had - before.had) + (self.waited - before.waited)
        return min(1.0, wanted / spent) if spent > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Throttling:
    """The periods of the cgroup's CPU quota so far, and in how many it was used up."""

    periods: int = 0
    throttled: int = 0

    @classmethod
    def now(cls) -> "Throttling":
        """Without a quota, or where nothing tells, there are no periods."""
        for path in _stat_files():
            with suppress(OSError, ValueError, KeyError):
                fields = dict(line.split() for line in path.read_text("ascii").splitlines())
                return cls(int(fields["nr_periods"]), int(fields["nr_throttled"]))
        return cls()

    def share_since(self, before: "Throttling") -> float:
        """The share of the periods since then in which the quota was used up."""
        periods = self.periods - before.periods
        return (self.throttled - before.throttled) / periods if periods > 0 else 0.0


def _stat_files() -> list[Path]:
    """Where this process's cgroup may tell, the likeliest first: version 2, then 1; by its path
    where all cgroups are seen, else at the root, which is a container's own."""
    found: list[Path] = []
    with suppress(OSError, ValueError):
        for line in (PROC / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            names = controllers.split(",")
            if controllers and "cpu" not in names:
                continue
            base = CGROUPS / controllers if controllers else CGROUPS
            found += [base / path.lstrip("/") / "cpu.stat", base / "cpu.stat"]
    return found

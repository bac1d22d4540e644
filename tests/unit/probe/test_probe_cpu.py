"""Whether the probe's own CPU was the limit, by what Linux counts, and in earnest."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from command_line import PROGRAM
from probed_ranks import NewRanks
from secret_directory import write_secret

from kvtier.probe import cpu
from kvtier.probe.cpu import Moment, Throttling
from kvtier.probe.result import ProbeResult, parse
from kvtier.probe.worker import run_probe


def test_a_thread_that_computes_is_busy_and_one_that_sleeps_is_not() -> None:
    before = Moment.now()
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        pass
    assert Moment.now().busy_since(before) > 0.9
    before = Moment.now()
    time.sleep(0.2)
    assert Moment.now().busy_since(before) < 0.5


def test_waiting_for_a_cpu_counts_as_busy() -> None:
    before = Moment(at=0.0, had=0.0, waited=0.0)
    assert Moment(at=1.0, had=0.3, waited=0.65).busy_since(before) == pytest.approx(0.95)
    assert Moment(at=1.0, had=0.3, waited=0.0).busy_since(before) == pytest.approx(0.3)
    assert before.busy_since(before) == 1.0


def test_the_share_of_throttled_periods_is_of_those_since() -> None:
    before = Throttling(periods=100, throttled=90)
    assert Throttling(periods=200, throttled=95).share_since(before) == 0.05
    assert before.share_since(before) == 0.0


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "cgroup").mkdir()
    monkeypatch.setattr(cpu, "PROC", tmp_path / "proc")
    monkeypatch.setattr(cpu, "CGROUPS", tmp_path / "cgroup")
    return tmp_path


STAT = "nr_periods 10\nnr_throttled 4\nthrottled_usec 123\n"


@pytest.mark.parametrize(
    ("cgroup", "place"),
    [
        ("0::/\n", "cpu.stat"),
        ("0::/pods/one\n", "pods/one/cpu.stat"),
        # A container's own tree begins at its cgroup, whose path is that of the host.
        ("0::/pods/one\n", "cpu.stat"),
        ("5:memory:/a\n3:cpu,cpuacct:/a\n0::/\n", "cpu,cpuacct/a/cpu.stat"),
        ("1:cpu:/a\n", "cpu/cpu.stat"),
    ],
)
def test_throttling_is_found_in_both_versions_of_cgroups(
    cgroup: str, place: str, system: Path
) -> None:
    (system / "proc/self/cgroup").write_text(cgroup)
    path = system / "cgroup" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(STAT)
    assert Throttling.now() == Throttling(periods=10, throttled=4)


@pytest.mark.parametrize("cgroup", ["", "rubbish\n", "0::/\n"])
def test_where_nothing_tells_nothing_was_throttled(cgroup: str, system: Path) -> None:
    (system / "proc/self/cgroup").write_text(cgroup)
    assert Throttling.now() == Throttling()
    # Nor is there a count of waiting; what CPU was had still says something.
    assert Moment.now().waited == 0


@contextmanager
def quota(share: float) -> Iterator[Path]:
    """A cgroup of this machine below our own, with so much of one CPU."""
    own = ""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            own = f"{controllers}{path}"
    group = Path("/sys/fs/cgroup") / own / f"kvtier-test-{os.getpid()}"
    version_1 = bool(own)
    try:
        group.mkdir()
        if version_1:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text(str(int(share * 100_000)))
        else:
            (group / "cpu.max").write_text(f"{int(share * 100_000)} 100000")
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no CPU quota can be made here: {error}")
    try:
        yield group
    finally:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


def test_a_probe_that_its_container_throttles_says_lower_bound(
    make_ranks: NewRanks, tmp_path: Path
) -> None:
    ranks = make_ranks(1)
    config = ranks.config(seconds=3.0, max_bytes=1 << 36, value_bytes=1 << 20)
    write_secret(tmp_path / "secret", config)
    output = run_below_a_quota(
        0.1, str(PROGRAM), "probe-worker", "--secret-dir", str(tmp_path / "secret")
    )
    found = parse(output.strip())
    assert isinstance(found, ProbeResult), found
    assert found.lower_bound


def test_throttling_is_counted_in_earnest() -> None:
    program = """
import time
from kvtier.probe.cpu import Throttling
before = Throttling.now()
end = time.monotonic() + 2
while time.monotonic() < end:
    pass
print(Throttling.now().share_since(before))
"""
    assert float(run_below_a_quota(0.05, sys.executable, "-c", program)) > 0.2


def run_below_a_quota(share: float, *argv: str) -> str:
    """What the program prints that has so much of one CPU."""
    with quota(share) as group:
        enter = f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
        program = f"import os, sys; {enter}; os.execv(sys.argv[1], sys.argv[1:])"
        done = subprocess.run(
            [sys.executable, "-c", program, *argv],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_a_probe_that_shares_its_cpu_with_others_says_lower_bound(make_ranks: NewRanks) -> None:
    ranks = make_ranks(1)
    mine = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    busy = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import os; os.sched_setaffinity(0, {{{mine}}})\nwhile True: pass",
            ]
        )
        for _ in range(8)
    ]
    try:
        # The probe's processes inherit it; the rank keeps all CPUs.
        os.sched_setaffinity(0, {mine})
        config = ranks.config(seconds=2.0, max_bytes=1 << 36, value_bytes=1 << 20)
        found = run_probe(config)
    finally:
        os.sched_setaffinity(0, before)
        for each in busy:
            each.kill()
            each.wait()
    assert not found.troubles
    assert found.lower_bound

"""``lmcache bench l2``: LMCache's own timing of its Valkey adapter, configured as engines are.

A round stores, looks up or loads ``chunks`` chunks that no other round has, all asked for at once,
by as many workers as the adapter has; what the last one loaded is compared with what was stored.
LMCache times a round from the first submit until the last chunk is in its buffer. What its process
took of the CPU is read from outside when it tells of a round.
"""

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kvtier.redact import redact

WARM = 1
"""Rounds that LMCache itself does not count."""
STORED_SECONDS = 900.0
"""Until torch is imported and all is stored, on a busy machine."""
VERIFIED = "keys data verified OK"
_LOADED = re.compile(r"\[Load\] Round (\d+): ([0-9.]+) ms, loaded=(\d+)/(\d+)")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Work:
    """What is stored and loaded of one rank: ``rounds`` times ``chunks`` of ``chunk_bytes``."""

    chunks: int
    chunk_bytes: int
    rounds: int

    @property
    def round_bytes(self) -> int:
        return self.chunks * self.chunk_bytes

    @property
    def stored_bytes(self) -> int:
        return (WARM + self.rounds) * self.round_bytes


@dataclass(frozen=True, slots=True)
class Loaded:
    """What LMCache says of the rounds that count: seconds of each, and bytes/s of the median one.

    ``cpu_per_byte`` is the seconds that its process had of the CPU for a byte. It sets its buffers
    to zero before each round, outside of what it times: that is in the CPU time.
    """

    work: Work
    seconds: tuple[float, ...]
    cpu_per_byte: float

    @property
    def median_seconds(self) -> float:
        return median(self.seconds)

    @property
    def bytes_per_second(self) -> float:
        return self.work.round_bytes / self.median_seconds


class LoadedTooLittle(AssertionError):
    """A chunk was not loaded, or LMCache ended early; the text is what it said."""


def load(
    program: Sequence[str],
    adapters: Sequence[dict[str, Any]],
    work: Work,
    *,
    environment: Mapping[str, str] | None = None,
) -> list[Loaded]:
    """Store on the ranks of all these adapters, and load from all of them at once, with a process
    for each as LMCache has a server for each.

    Those that have stored are held until all have. Raises LoadedTooLittle.
    """
    runs = [_Run(program, adapter, work, environment or {}) for adapter in adapters]
    try:
        for run in runs:
            run.hold()
        for run in runs:
            run.release()
        return [run.result() for run in runs]
    finally:
        for run in runs:
            run.end()


class _Run:
    def __init__(
        self,
        program: Sequence[str],
        adapter: dict[str, Any],
        work: Work,
        environment: Mapping[str, str],
    ) -> None:
        self._work = work
        self._process = subprocess.Popen(
            _command(program, work),
            env=_environment(adapter) | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._said: list[str] = []
        self._cpu: list[float] = []
        self._stored = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def hold(self) -> None:
        """Until it has stored all."""
        if not self._stored.wait(STORED_SECONDS):
            raise LoadedTooLittle(self._text())

    def release(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)

    def result(self) -> Loaded:
        code = self._process.wait(2 * STORED_SECONDS)
        self._reader.join()
        rounds = [found for line in self._said if (found := _LOADED.search(line))]
        whole = all(each[3] == each[4] == str(self._work.chunks) for each in rounds[WARM:])
        verified = any(VERIFIED in line for line in self._said)
        if code or not verified or len(rounds) != WARM + self._work.rounds or not whole:
            raise LoadedTooLittle(self._text())
        return Loaded(
            work=self._work,
            seconds=tuple(float(each[2]) / 1e3 for each in rounds[WARM:]),
            # What comes after the last round is other work.
            cpu_per_byte=(self._cpu[-2] - self._cpu[WARM - 1])
            / (self._work.round_bytes * (self._work.rounds - 1)),
        )

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line)
            if line.startswith("[Load] Running"):
                self._process.send_signal(signal.SIGSTOP)
                self._stored.set()
            elif _LOADED.search(line):
                self._cpu.append(_cpu_seconds(self._process.pid))
        self._stored.set()

    def _text(self) -> str:
        return redact("".join(self._said))[-8000:]


def _command(program: Sequence[str], work: Work) -> list[str]:
    kilobytes, rest = divmod(work.chunk_bytes, 1024)
    assert not rest, "LMCache's bench takes whole KiB"
    return [
        *(*program, "bench", "l2", "--no-skip-verify", "--lookup-max-hit-rate", "1"),
        *("--num-keys", str(work.chunks), "--data-size-kb", str(kilobytes)),
        *("--rounds", str(work.rounds), "--warmup-rounds", str(WARM)),
    ]


def _environment(adapter: dict[str, Any]) -> dict[str, str]:
    """The adapter has the token, which is no argument. One thread for torch, whose helpers would
    spin while they wait and be counted."""
    return os.environ | {
        "L2_ADAPTER_JSON": json.dumps(adapter),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
    }


def _cpu_seconds(pid: int) -> float:
    """Of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS

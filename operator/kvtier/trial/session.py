"""The caller's side of a keeper: start the ranks, and be sure that they end."""

import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvtier.trial import keeper
from kvtier.trial.program import Program

WORD_SECONDS: Final = 60.0
END_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.05


class TrialFailed(Exception):
    """Why the ranks do not run. One line."""


class Stopped(Exception):
    """Someone wants it to end."""


@dataclass(slots=True)
class Session:
    """A keeper and its private ``directory``. ``pid`` is what to signal to end all that is kept."""

    directory: Path
    pid: int
    _process: "subprocess.Popen[bytes]"
    _stop: threading.Event
    kept: bool = False

    def start(self, program: Program, *, ranks: int) -> list[int]:
        """Start the ranks whose files are in the directory; their ports. Raises TrialFailed."""
        self._tell({"program": str(program.path), "ranks": ranks})
        word = _hear(self._process, self._stop)
        if "failed" in word:
            raise TrialFailed(word["failed"])
        ports: list[int] = word["ports"]
        return ports

    def keep(self) -> None:
        """Leave everything as it is when this process ends."""
        self._tell({"keep": True})
        self.kept = True

    def _tell(self, word: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(word).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise TrialFailed("the ranks' keeper was killed") from None


@contextmanager
def session(stop: threading.Event) -> Iterator[Session]:
    """A keeper with nothing started yet; at the end all of it is gone, unless it was kept.

    Raises Stopped once ``stop`` is set, TrialFailed if the keeper does not come up.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", keeper.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        # Ctrl-C at a terminal reaches the caller only, who then ends this in order.
        start_new_session=True,
    )
    ours: Session | None = None
    try:
        word = _hear(process, stop)
        ours = Session(Path(word["directory"]), word["pid"], process, stop)
        yield ours
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        if ours is None or not ours.kept:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if ours is not None:
                # Only a keeper that was killed has left it.
                shutil.rmtree(ours.directory, ignore_errors=True)
        process.stdout.close()


def _hear(process: "subprocess.Popen[bytes]", stop: threading.Event) -> dict[str, Any]:
    assert process.stdout is not None
    deadline = time.monotonic() + WORD_SECONDS
    while not select.select([process.stdout], [], [], POLL_SECONDS)[0]:
        if stop.is_set():
            raise Stopped
        if time.monotonic() > deadline:
            raise TrialFailed(f"the ranks did not start within {WORD_SECONDS:g} s")
    line = process.stdout.readline()
    if stop.is_set():
        raise Stopped
    if not line:
        raise TrialFailed("the ranks' keeper was killed")
    word: dict[str, Any] = json.loads(line)
    return word

"""``kvtier`` as a person runs it: in this process where that is the same, else on its own."""

import contextlib
import io
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

from kvtier.cli.main import main

Completed = subprocess.CompletedProcess[bytes]
PROGRAM = Path(sys.executable).with_name("kvtier")


def kvtier(*arguments: str | Path, stdin: bytes = b"") -> Completed:
    """Run it here to the end."""
    argv = [str(argument) for argument in arguments]
    read = io.TextIOWrapper(io.BytesIO(stdin))
    written, complained = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with (
        mock.patch("sys.stdin", read),
        mock.patch.dict(os.environ, COLUMNS="100"),
        contextlib.redirect_stdout(written),
        contextlib.redirect_stderr(complained),
    ):
        try:
            code = main(argv)
        except SystemExit as exit_:
            code = int(exit_.code or 0)
    return Completed(argv, code, _bytes(written), _bytes(complained))


def kvtier_process(*arguments: str | Path, stdout: int = subprocess.PIPE) -> Completed:
    """Run the installed program; ``stdout`` may be a file descriptor of the caller's."""
    return subprocess.run(
        [PROGRAM, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=100,
        check=False,
    )


def kvtier_at_terminal(*arguments: str | Path) -> Completed:
    """Run the installed program with standard error at a terminal; ``stderr`` is what it drew."""
    ours, theirs = pty.openpty()
    drawn: list[bytes] = []

    def read() -> None:
        # Linux says EIO once nobody has the other end any more.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 4096):
                drawn.append(piece)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        done = subprocess.run(
            [PROGRAM, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            timeout=100,
            check=False,
        )
    finally:
        os.close(theirs)
        reading.join()
        os.close(ours)
    return Completed(done.args, done.returncode, done.stdout, b"".join(drawn))


def one_line(completed: Completed) -> str:
    """The complaint, after checking that it is one: exit code 2, one line, no traceback."""
    text = completed.stderr.decode()
    assert completed.returncode == 2, text
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    assert text.startswith("kvtier: "), text
    return text.removeprefix("kvtier: ").strip()


def _bytes(stream: io.TextIOWrapper) -> bytes:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue()

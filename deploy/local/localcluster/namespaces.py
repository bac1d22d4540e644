"""Processes in Linux namespaces of their own.

A machine of the cluster is a set of namespaces (network, mounts, process ids, host name,
IPC) held open by its first process. Killing that process makes the kernel kill all others
and drop every mount, interface and packet filter rule that the machine had.
Python gained `os.unshare` and `os.setns` in 3.12; 3.11 is the oldest version we run on.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .errors import ClusterError

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MACHINE_FLAGS = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
# The mount namespace comes last: after it, /proc no longer shows the caller's processes.
MACHINE_NAMESPACES = ("net", "uts", "ipc", "pid", "mnt")

_libc = ctypes.CDLL(None, use_errno=True)


def _unshare(flags: int) -> None:
    if _libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def _setns(fd: int) -> None:
    if _libc.setns(fd, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def _detach(*, enter: Callable[[], None], run: Callable[[], None], log: Path) -> int:
    """Fork, `enter()`, fork again, `run()` there; return the second child's pid as seen here.

    `run` must end in an exec. It returns once the exec has happened, or raises ClusterError
    with what went wrong before it. The child has a session of its own, reads nothing, and
    writes to `log`; it is handed to the machine's init, so nobody has to wait for it.
    """
    reader, writer = os.pipe()
    first = os.fork()
    if first == 0:
        code = 1
        try:
            os.close(reader)
            enter()
            second = os.fork()
            if second == 0:
                os.setsid()
                with Path(os.devnull).open("rb") as nothing:
                    os.dup2(nothing.fileno(), 0)
                with log.open("ab") as out:
                    os.dup2(out.fileno(), 1)
                    os.dup2(out.fileno(), 2)
                run()
            os.write(writer, f"{second}\n".encode())
            code = 0
        except BaseException as error:
            os.write(writer, f"error: {error}\n".encode())
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "r") as answer:
        lines = answer.read().splitlines()
    os.waitpid(first, 0)
    errors = [line for line in lines if line.startswith("error: ")]
    if errors or not lines:
        raise ClusterError(f"{errors[0] if errors else 'a process did not start'}; see {log}")
    return int(lines[0])


def create_machine(*, setup: str, init: Path, title: str, hostname: str, log: Path) -> int:
    """Make a machine, run the shell script `setup` in it, then `init` as its first process.

    `title` is what `init` is called in lists of processes. Returns its id on the host.
    """

    def enter() -> None:
        _unshare(MACHINE_FLAGS)

    def run() -> None:
        os.chdir("/")
        Path("/proc/sys/kernel/hostname").write_text(hostname)
        done = subprocess.run(["sh", "-euc", setup], capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{hostname}: {' '.join(done.stderr.split())}")
        os.execv(init, [title])

    return _detach(enter=enter, run=run, log=log)


def start_in_machine(
    *, machine: int, argv: Sequence[str], env: Mapping[str, str], log: Path
) -> int:
    """Start `argv` in the machine whose first process is `machine`; return its id on the host."""
    namespaces = [
        os.open(f"/proc/{machine}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        for kind in MACHINE_NAMESPACES
    ]

    def enter() -> None:
        for fd in namespaces:
            _setns(fd)

    def run() -> None:
        os.chdir("/")
        os.execve(argv[0], list(argv), dict(env))

    try:
        return _detach(enter=enter, run=run, log=log)
    finally:
        for fd in namespaces:
            os.close(fd)


def in_network(machine: int) -> list[str]:
    """What to put before a command of the host to run it in the machine's network."""
    return ["nsenter", f"--net=/proc/{machine}/ns/net", "--"]


def run_in_network(*, machine: int, argv: Sequence[str], stdin: str = "") -> None:
    """Run a command in the machine's network, wait for it; ClusterError if it fails."""
    command = [*in_network(machine), *argv]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(argv)}: {' '.join(done.stderr.split())}")


def can_unshare() -> str:
    """Empty if namespaces can be made here, else the reason."""
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            _unshare(MACHINE_FLAGS)
        except OSError as error:
            code = error.errno or 1
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return os.strerror(code) if code else ""

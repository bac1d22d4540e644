"""A person who may only read, and kvtier's commands as that person runs them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from apiserver_process import ApiServer

PROGRAM = Path(sys.executable).with_name("kvtier")
VIEW = "system:aggregate-to-view"
"""What Kubernetes' own ``view`` is made of; without controllers nothing fills that one."""


def rule(verbs: str, *resources: str, group: str = "") -> dict[str, object]:
    return {"apiGroups": [group], "resources": list(resources), "verbs": verbs.split()}


TIERS = rule("get list watch", "kvcachetiers", group="kvtier.dev")


def account(
    server: ApiServer,
    namespace: str,
    name: str,
    *rules: dict[str, object],
    view: bool,
    directory: Path,
) -> Path:
    """The kubeconfig of a new ServiceAccount with these rules in its namespace, and with ``view``
    those of Kubernetes' role of that name."""
    objects: list[dict[str, object]] = [
        _rbac(namespace, name, "Role", rules=list(rules)),
        _binding(namespace, name, {"kind": "Role", "name": name}),
    ]
    if view:
        role = {"kind": "ClusterRole", "name": VIEW}
        objects.append(_binding(namespace, f"{name}-view", role, account=name))
    for command in (
        ("create", "serviceaccount", name),
        ("apply", "-f", "-"),
    ):
        text = yaml.safe_dump_all(objects) if command[0] == "apply" else None
        answer = server.kubectl("-n", namespace, *command, stdin=text)
        assert answer.code == 0, answer.message
    token = server.kubectl("-n", namespace, "create", "token", name)
    assert token.code == 0, token.message
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token.out.strip()}
    config["contexts"][0]["context"]["namespace"] = namespace
    made = directory / f"{name}.kubeconfig"
    made.write_text(yaml.safe_dump(config))
    return made


def _rbac(namespace: str, name: str, kind: str, **content: object) -> dict[str, object]:
    version = "rbac.authorization.k8s.io/v1"
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def _binding(
    namespace: str, name: str, role: dict[str, str], *, account: str = ""
) -> dict[str, object]:
    subject = {"kind": "ServiceAccount", "name": account or name, "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", **role}
    return _rbac(namespace, name, "RoleBinding", roleRef=reference, subjects=[subject])


def kvtier(
    config: Path, *arguments: str, code: int | None = 0, cwd: Path | None = None
) -> tuple[str, str]:
    """What the command printed, and what it complained of; ``code`` None takes any."""
    done = subprocess.run(
        [PROGRAM, *arguments],
        env={"KUBECONFIG": str(config), "PATH": "/usr/bin:/bin", "HOME": str(config.parent)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        cwd=cwd,
    )
    assert code in (None, done.returncode), (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout, done.stderr


@dataclass(slots=True)
class Running:
    """A command that goes on; ``lines`` are what it printed so far."""

    process: subprocess.Popen[str]
    errors: Path
    lines: list[str] = field(default_factory=list)

    def wait_for(self, what: str, *, seconds: float = 40.0, begin: int = 0) -> str:
        """The first line from ``begin`` on that holds this."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.lines[begin:]:
                if what in line:
                    return line
            assert self.process.poll() is None, self.errors.read_text()
            time.sleep(0.05)
        raise AssertionError(f"no {what!r} within {seconds} s in {self.lines[begin:]}")

    def interrupt(self) -> int:
        """Ctrl-C, and the exit code that it brings."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=20)


def _as_in_a_terminal() -> None:
    """What a shell starts behind ``&`` ignores Ctrl-C, and so may what CI starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def running(config: Path, directory: Path, *arguments: str) -> Iterator[Running]:
    """The command, until the end of the block."""
    errors = directory / f"errors-{time.monotonic_ns()}"
    with errors.open("w") as stream:
        process = subprocess.Popen(
            [PROGRAM, *arguments],
            env=os.environ | {"KUBECONFIG": str(config)},
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            preexec_fn=_as_in_a_terminal,
        )
    made = Running(process=process, errors=errors)
    reader = threading.Thread(target=_read, args=(process, made.lines.append), daemon=True)
    reader.start()
    try:
        yield made
    finally:
        process.kill()
        process.wait()
        reader.join(10)
        assert process.stdout is not None
        process.stdout.close()


def _read(process: subprocess.Popen[str], keep: Callable[[str], None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        keep(line.rstrip("\n"))

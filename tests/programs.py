"""Programs and files of other projects: where they are, fetched and built once, and ended."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
FETCH_SECONDS = 110
BUILD_SECONDS = 2400
"""A big program, on a busy machine."""


class CannotStart(Exception):
    """Why this machine cannot run something; one line that says what to do."""


def local_binaries() -> dict[str, Path]:
    """Paths of the local cluster's binaries by name, whether they are built yet or not."""
    sys.path.insert(0, str(CHECKOUT / "deploy" / "local"))
    try:
        from localcluster.build import binaries
    finally:
        sys.path.pop(0)
    return binaries()


def go_module(module: str, *, checksum: str) -> Path:
    """The directory of ``module`` (path@version), from the module cache or the Go proxy.

    ``checksum`` is as go.sum has it. Raises CannotStart, in one line, when it cannot be fetched.
    """
    done = _go("mod", "download", "-json", module, seconds=FETCH_SECONDS, flags="-mod=mod")
    if done.returncode:
        said = " ".join(f"{done.stdout} {done.stderr}".split())
        raise CannotStart(f"`go mod download {module}` failed, see GOPROXY: {said}")
    found = json.loads(done.stdout)
    assert found["Sum"] == checksum, found
    return Path(found["Dir"])


def go_program(name: str, *, module: str, checksum: str, tags: str = "", given: str = "") -> Path:
    """The module's ``./cmd/<name>``, built into the local cluster's cache unless it is there.

    ``given`` is an environment variable that may name a built one instead. Raises CannotStart, in
    one line, when there is none to be had.
    """
    if path := os.environ.get(given):
        if not Path(path).exists():
            raise CannotStart(f"{given}: there is no {path}")
        return Path(path)
    version = module.partition("@")[2]
    built = local_binaries()["etcd"].parents[1] / f"{name}-{version}" / name
    if not built.exists():
        source = go_module(module, checksum=checksum)
        half = built.with_suffix(".half")
        built.parent.mkdir(parents=True, exist_ok=True)
        build = ("build", "-mod=readonly", f"-tags={tags}", "-o", str(half), f"./cmd/{name}")
        done = _go(*build, seconds=BUILD_SECONDS, directory=source)
        if done.returncode:
            raise CannotStart(f"{name} does not build: {' '.join(done.stderr.split())}")
        half.rename(built)
    return built


def end(process: "subprocess.Popen[Any]", *, seconds: float = 20.0) -> bool:
    """Have it end by SIGTERM, and kill it if it has not in time; whether it had."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


def _go(
    *arguments: str, seconds: float, flags: str = "", directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["go", *arguments],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            # The caller's flags and workspace must not change what is fetched or built.
            env={**os.environ, "GOFLAGS": flags, "GOWORK": "off"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotStart(f"`go {' '.join(arguments)}` failed: {error}") from error

"""Go binaries, built once from pinned modules into the cache."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .errors import CannotRun, ClusterError
from .settings import LOCAL, cache_root

MODULES = LOCAL / "build"
MINIMUM_GO = (1, 26)
PROGRESS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """One Go module with the binaries it yields; `seconds`: a cold build on two cores.

    `built` are the names that `go build` gives them, in the order of `binaries`.
    """

    module: str
    packages: tuple[str, ...]
    binaries: tuple[str, ...]
    built: tuple[str, ...]
    ldflags: str
    seconds: int

    @property
    def command(self) -> tuple[str, ...]:
        ldflags = f"-s -w {self.ldflags}".strip()
        return ("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags)

    @property
    def key(self) -> str:
        """Hash of everything that is pinned: sources, versions, flags."""
        digest = hashlib.sha256(" ".join((*self.command, *self.packages)).encode())
        for file in sorted((MODULES / self.module).iterdir()):
            if file.name in ("go.mod", "go.sum") or file.suffix == ".go":
                digest.update(f"{file.name}\0".encode() + file.read_bytes())
        return digest.hexdigest()[:16]

    @property
    def directory(self) -> Path:
        return cache_root() / "bin" / f"{self.module}-{self.key}"


def targets() -> list[Target]:
    """All targets of build/targets.json, in the order in which they are built."""
    return [
        Target(
            module=row["module"],
            packages=tuple(row["packages"]),
            binaries=tuple(row["binaries"]),
            built=tuple(row.get("built", row["binaries"])),
            ldflags=row.get("ldflags", ""),
            seconds=row["seconds"],
        )
        for row in json.loads((MODULES / "targets.json").read_text())
    ]


def binaries() -> dict[str, Path]:
    """Path of each binary by name, whether it is built yet or not."""
    return {name: t.directory / name for t in targets() for name in t.binaries}


def missing() -> list[Target]:
    return [t for t in targets() if not all((t.directory / name).exists() for name in t.binaries)]


def check_go() -> None:
    """Refuse, in one line, a machine that cannot build what is missing."""
    if not missing():
        return
    if not shutil.which("go"):
        raise CannotRun("Go 1.26 or later is needed to build Kubernetes, and no `go` is on PATH")
    said = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=False)
    found = re.match(r"go(\d+)\.(\d+)", said.stdout)
    if not found or (int(found[1]), int(found[2])) < MINIMUM_GO:
        raise CannotRun(f"Go 1.26 or later is needed, this machine has {said.stdout.strip()}")


def build() -> None:
    """Build what is missing. Safe to kill at any point, and to run twice at once."""
    check_go()
    root = cache_root() / "bin"
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        left = missing()
        if not left:
            return
        for unfinished in root.glob(".building-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        total = sum(target.seconds for target in left)
        names = ", ".join(target.module for target in left)
        minutes = -(-total // 300) * 5
        print(
            f"building {names}: once, about {minutes} min on two idle cores, longer on busy ones",
            flush=True,
        )
        for target in left:
            _build_one(target=target, root=root)


def _build_one(*, target: Target, root: Path) -> None:
    out = Path(tempfile.mkdtemp(prefix=".building-", dir=root))
    log = root / f"{target.module}.log"
    # The caller's GOFLAGS must not change what is built.
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    started = time.monotonic()
    print(f"  {target.module}: fetching its modules (log of its build: {log})", flush=True)
    total = _count_packages(target, env=env)
    with log.open("wb") as output:
        # -v is no part of what is built, and not of its key: each package as it is compiled.
        process = subprocess.Popen(
            [*target.command, "-v", "-o", f"{out}/", *target.packages],
            cwd=MODULES / target.module,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while True:
                try:
                    code = process.wait(timeout=PROGRESS_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    now = progress(log.read_text(errors="replace"), total=total)
                    minutes = (time.monotonic() - started) / 60
                    print(f"  {target.module}: {minutes:.0f} min, {now}", flush=True)
        except BaseException:
            process.kill()
            process.wait()
            raise
    if code:
        why = failure(log.read_text(errors="replace"))
        raise ClusterError(f"building {target.module} failed: {why} (all of it: {log})")
    for built, name in zip(target.built, target.binaries, strict=True):
        # Go names a binary after its module's last path element; ours of "." after our module.
        (out / built).rename(out / name)
    shutil.rmtree(target.directory, ignore_errors=True)
    out.chmod(0o755)
    out.rename(target.directory)
    print(f"  {target.module}: built in {time.monotonic() - started:.0f} s", flush=True)


def progress(log: str, *, total: int | None) -> str:
    """How far a build is, by what `go build -v` has told. What a cache has is not told of."""
    packages = [line for line in log.splitlines() if _is_package(line)]
    if not packages:
        return "nothing compiled yet"
    most = f" of {total:,} at most" if total else ""
    return f"{len(packages):,} packages compiled{most}, now {packages[-1]}"


def failure(log: str) -> str:
    """The last line that is more than the name of a package."""
    lines = [line for line in log.strip().splitlines() if not _is_package(line)]
    return lines[-1] if lines else "no output"


def _is_package(line: str) -> bool:
    return bool(line) and " " not in line and ":" not in line


def _count_packages(target: Target, *, env: dict[str, str]) -> int | None:
    """All packages that the target is made of; None if that cannot be told, as the build will."""
    done = subprocess.run(
        ["go", "list", "-deps", *target.packages],
        cwd=MODULES / target.module,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    return None if done.returncode else len(done.stdout.splitlines())

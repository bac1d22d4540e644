"""Images without a registry, built once into the cache; load.py brings them to the nodes."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import build, debian, oci
from .components import PAUSE_IMAGE
from .errors import ClusterError
from .oci import Config, Image, Layer
from .settings import CHECKOUT, LOCAL, cache_root

# Part of every image's key: raise it when the code below makes other images of the same input.
RECIPE = "2"
VALKEY_SERIES = ("9.1", "8.1")
REPOSITORY = "docker.io/kvtier/kvtier"
SITE_PACKAGES = "opt/kvtier"
PYTHON = "/usr/bin/python3"
PYTHON_VERSION = "3.11"
WHEEL_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
KEEP_SECONDS = 7 * 24 * 3600
LOCK = CHECKOUT / "deploy" / "locks" / "runtime.txt"


@dataclass(frozen=True, slots=True)
class _Debian:
    """One entry of images.json."""

    name: str
    suite: str
    packages: tuple[str, ...]
    skip: tuple[str, ...]
    drop: tuple[str, ...]

    def resolve(self) -> dict[str, tuple[str, str]]:
        return debian.resolve(name=self.name, suite=self.suite, packages=self.packages)


def all_images() -> list[Image]:
    """Every image of the local cluster, built if it is not in the cache."""
    with _locked():
        images = [_pause(), *(_valkey(series) for series in VALKEY_SERIES), _kvtier()]
        _forget_old(images)
        return images


def pause() -> Image:
    """The image that holds a pod's namespaces: a node needs no other to start."""
    with _locked():
        return _pause()


def valkey_files(series: str) -> Path:
    """Where the files of a Valkey image are unpacked, to run its programs without a container."""
    with _locked():
        return _unpacked(_debian_layer(_debian(f"valkey-{series}")))


@contextmanager
def _locked() -> Iterator[None]:
    """One process at a time works on the cache."""
    with (_cache() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pause() -> Image:
    binary = build.binaries()["pause"]

    def fill(root: Path) -> None:
        shutil.copy(binary, root / "pause")

    return Image(
        names=(PAUSE_IMAGE,),
        layers=(_layer(key=binary.parent.name, what="", fill=fill),),
        config=Config(entrypoint=("/pause",), user="65535:65535"),
    )


def _valkey(series: str) -> Image:
    """Valkey of one series (such as 9.1) from Debian, tagged with series and real version."""
    recipe = _debian(f"valkey-{series}")
    packages = recipe.resolve()
    found = re.match(r"(?:\d+:)?(\d+\.\d+)\.\d+", packages["valkey-server"][0])
    if not found or found[1] != series:
        raise ClusterError(
            f"Debian {recipe.suite} has Valkey {packages['valkey-server'][0]}, not {series}: "
            f"name another suite for valkey-{series} in deploy/local/images.json"
        )
    version = found[0].rpartition(":")[2]
    return Image(
        names=tuple(f"docker.io/valkey/valkey:{tag}" for tag in (series, version)),
        layers=(_debian_layer(recipe),),
        config=Config(entrypoint=("/usr/bin/valkey-server",), user="999:999"),
    )


def _kvtier() -> Image:
    """kvtier's own image: Debian's Python, the locked dependencies, the checkout's wheel."""
    lock = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    base = _debian_layer(
        _debian("python"),
        prepare=lambda root: _compile(root=root, path=f"/usr/lib/python{PYTHON_VERSION}"),
    )
    dependencies = _layer(
        key=f"dependencies-{_key(lock, base.digest)}",
        what="the locked dependencies",
        fill=lambda root: _install(root, base=base, arguments=["-r", str(LOCK)]),
    )
    wheel = _wheel()
    code = _layer(
        key=f"kvtier-{_key(wheel.parent.name, base.digest)}",
        what="kvtier",
        fill=lambda root: _install(root, base=base, arguments=["--no-deps", str(wheel)]),
    )
    version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
    return Image(
        names=(f"{REPOSITORY}:dev", f"{REPOSITORY}:{version}"),
        layers=(base, dependencies, code),
        config=Config(
            entrypoint=(PYTHON, f"/{SITE_PACKAGES}/bin/kvtier"),
            user="65532:65532",
            env=(f"PYTHONPATH=/{SITE_PACKAGES}", "PYTHONDONTWRITEBYTECODE=1"),
        ),
    )


def _forget_old(images: list[Image]) -> None:
    """Drop what neither these images nor, of late, others were made of."""
    used = {layer.file.stem for image in images for layer in image.layers}
    oldest = time.time() - KEEP_SECONDS
    for path in _cache().iterdir():
        if path.name != ".lock" and path.stem not in used and path.stat().st_mtime < oldest:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _cache() -> Path:
    directory = cache_root() / "images"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join((RECIPE, *parts)).encode()).hexdigest()[:16]


def _layer(*, key: str, what: str, fill: Callable[[Path], None]) -> Layer:
    """The layer of that key from the cache, or made of what `fill` puts into a directory."""
    file = _cache() / f"{key}.layer"
    if file.exists():
        return oci.read_layer(file)
    if what:
        print(f"  making a layer: {what}", flush=True)
    with tempfile.TemporaryDirectory(dir=_cache()) as directory:
        root = Path(directory) / "root"
        root.mkdir()
        fill(root)
        return oci.write_layer(root=root, to=file)


def _debian(name: str) -> _Debian:
    recipes: dict[str, Any] = json.loads((LOCAL / "images.json").read_text())
    row = recipes["debian"][name]
    return _Debian(
        name=name,
        suite=row["suite"],
        packages=tuple(row["packages"]),
        skip=tuple(row["skip"]),
        drop=tuple(recipes["drop"]),
    )


def _debian_layer(recipe: _Debian, *, prepare: Callable[[Path], None] | None = None) -> Layer:
    packages = recipe.resolve()
    digests = [digest for name, (_, digest) in packages.items() if name not in recipe.skip]

    def fill(root: Path) -> None:
        debian.unpack(digests=digests, drop=recipe.drop, root=root)
        if prepare:
            prepare(root)

    key = f"{recipe.name}-{_key(*digests, *recipe.drop)}"
    return _layer(key=key, what=f"{recipe.name} of Debian {recipe.suite}", fill=fill)


def _compile(*, root: Path, path: str) -> None:
    """Byte code beside the sources below `path`, made by the Python in `root`.

    The container's file system is read-only, and layers have one time stamp for all files: so
    the byte code must be there, and must not be judged by times.
    """
    done = subprocess.run(
        [
            *("chroot", str(root), PYTHON, "-m", "compileall", "-q"),
            *("--invalidation-mode", "unchecked-hash", path),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ClusterError(f"compileall {path}: {' '.join(done.stdout.split())[-300:]}")


def _unpacked(layer: Layer) -> Path:
    """The layer's files in a directory of the cache, to run its programs from."""
    directory = layer.file.with_suffix(".root")
    if not directory.exists():
        unfinished = Path(tempfile.mkdtemp(dir=_cache()))
        subprocess.run(["tar", "-x", "-C", str(unfinished), "-f", str(layer.file)], check=True)
        unfinished.chmod(0o755)
        unfinished.rename(directory)
    return directory


def _python() -> str:
    """A Python with pip: of the checkout's environment if there is one."""
    environment = CHECKOUT / ".venv" / "bin" / "python"
    return str(environment) if environment.exists() else sys.executable


def _isolation() -> list[str]:
    """Build with the backend that is installed already, or let pip fetch one."""
    probe = [_python(), "-c", "import hatchling"]
    found = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    return ["--no-build-isolation"] if found else []


def _run_pip(arguments: list[str]) -> None:
    done = subprocess.run(
        [_python(), "-m", "pip", "--quiet", "--no-input", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(oci.EPOCH)},
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise ClusterError(f"pip {arguments[0]}: {lines[-1]}")


def _install(root: Path, *, base: Layer, arguments: list[str]) -> None:
    """Install wheels below `root`, compiled by the Python of the layer `base`."""
    target = root / SITE_PACKAGES
    platforms = [f"--platform={platform}" for platform in WHEEL_PLATFORMS]
    _run_pip(
        [
            *("install", "--no-compile", "--only-binary=:all:", f"--target={target}"),
            *(f"--python-version={PYTHON_VERSION}", "--implementation=cp", *platforms),
            *arguments,
        ]
    )
    for script in (target / "bin").glob("*"):
        # pip wrote the path of the Python that it ran in.
        lines = script.read_text().split("\n")
        script.write_text("\n".join([f"#!{PYTHON}", *lines[1:]]))
    # Compiled where it will be, so that tracebacks name the paths of the image.
    python = _unpacked(base)
    there = python / SITE_PACKAGES
    shutil.rmtree(there, ignore_errors=True)
    there.parent.mkdir(exist_ok=True)
    shutil.move(target, there)
    _compile(root=python, path=f"/{SITE_PACKAGES}")
    shutil.move(there, target)


def _wheel() -> Path:
    """The wheel of the checkout as it is now: the one that deploy/Dockerfile installs."""
    sources = [CHECKOUT / name for name in ("pyproject.toml", "README.md", "LICENSE")]
    sources += [
        path
        for path in sorted((CHECKOUT / "operator").rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
    digest = hashlib.sha256()
    for path in sources:
        digest.update(f"{path.relative_to(CHECKOUT)}\0".encode() + path.read_bytes() + b"\0")
    directory = _cache() / f"wheel-{digest.hexdigest()[:16]}"
    if not directory.exists():
        print("  building the wheel", flush=True)
        with tempfile.TemporaryDirectory(dir=_cache()) as temporary:
            made = Path(temporary) / "wheel"
            _run_pip(["wheel", "--no-deps", *_isolation(), f"--wheel-dir={made}", str(CHECKOUT)])
            made.rename(directory)
    (wheel,) = directory.glob("*.whl")
    return wheel

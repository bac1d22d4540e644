"""Root file systems made of Debian packages, without running any of their scripts.

A suite is resolved once: the packages are kept in the cache under their SHA-256, with a list
of what was chosen, so that a suite that moves on (sid) does not change an image in use.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .errors import CannotRun, ClusterError
from .settings import cache_root

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MERGED_USR = ("bin", "sbin", "lib", "lib64")
PASSWD = "root:x:0:0:root:/:/nonexistent\nnonroot:x:65532:65532:nonroot:/:/nonexistent\n"


def resolve(*, name: str, suite: str, packages: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The packages and all they depend on: (version, SHA-256 in the cache) by package name.

    `name` names the choice: asked again, it answers the same, from the cache.
    """
    cache = cache_root() / "debs"
    chosen = cache / f"{name}.json"
    if chosen.exists():
        return {key: (row[0], row[1]) for key, row in json.loads(chosen.read_text()).items()}
    cache.mkdir(parents=True, exist_ok=True)
    print(f"  fetching {' '.join(packages)} from Debian {suite}", flush=True)
    result: dict[str, tuple[str, str]] = {}
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        for deb in _download(Path(directory), suite=suite, packages=packages):
            said = subprocess.run(
                ["dpkg-deb", "-f", deb, "Package", "Version"],
                capture_output=True,
                text=True,
                check=True,
            )
            fields = dict(line.split(": ", 1) for line in said.stdout.splitlines())
            digest = hashlib.sha256(deb.read_bytes()).hexdigest()
            shutil.move(deb, cache / f"{digest}.deb")
            result[fields["Package"]] = (fields["Version"], digest)
    unfinished = chosen.with_suffix(".new")
    unfinished.write_text(json.dumps(result, indent=2, sort_keys=True) + "\n")
    unfinished.rename(chosen)
    return result


def unpack(*, digests: Sequence[str], drop: Sequence[str], root: Path) -> None:
    """Unpack packages of the cache into `root`, leaving out the directories in `drop`."""
    for link in MERGED_USR:
        (root / "usr" / link).mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(f"usr/{link}")
    for digest in digests:
        deb = cache_root() / "debs" / f"{digest}.deb"
        package = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE)
        unpacked = subprocess.run(
            ["tar", "-x", "-C", str(root), "--keep-directory-symlink"],
            stdin=package.stdout,
            check=False,
        )
        if package.wait() or unpacked.returncode:
            raise ClusterError(f"{deb} cannot be unpacked: delete it and {deb.parent}/*.json")
    for path in drop:
        shutil.rmtree(root / path, ignore_errors=True)
    (root / "tmp").mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text(PASSWD)
    (root / "etc/group").write_text("root:x:0:\nnonroot:x:65532:\n")


def _download(directory: Path, *, suite: str, packages: Sequence[str]) -> list[Path]:
    """Let apt, in directories of its own, resolve and fetch; return the .deb files."""
    for path in ("state/lists/partial", "cache/archives/partial", "etc"):
        (directory / path).mkdir(parents=True)
    (directory / "status").touch()
    (directory / "sources.list").write_text(f"deb [signed-by={KEYRING}] {_mirror()} {suite} main\n")
    options = {
        "Dir::State": directory / "state",
        "Dir::State::status": directory / "status",
        "Dir::Cache": directory / "cache",
        "Dir::Etc::sourcelist": directory / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        # sid's index is often past its date on a mirror that is not refreshed daily.
        "Acquire::Check-Valid-Until": "false",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
        "APT::Keep-Downloaded-Packages": "true",
        "DPkg::Post-Invoke": "",
    }
    apt = ["apt-get", "-q", "-y", *(f"-o{key}={value}" for key, value in options.items())]
    for arguments in (
        ["update"],
        ["install", "--download-only", "--no-install-recommends", *packages],
    ):
        done = subprocess.run(
            [*apt, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
        if done.returncode:
            raise ClusterError(
                f"apt-get {arguments[0]} for Debian {suite} failed: "
                f"{' '.join(done.stderr.split())[-300:]}"
            )
    return sorted((directory / "cache" / "archives").glob("*.deb"))


def _mirror() -> str:
    """The mirror that this machine's own apt uses."""
    if mirror := os.environ.get("KVTIER_DEBIAN_MIRROR"):
        return mirror
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(SITE)"],
        capture_output=True,
        text=True,
        check=False,
    )
    for line in said.stdout.splitlines():
        origin, _, rest = line.partition(" ")
        label, _, site = rest.partition(" ")
        if origin == label == "Debian":
            return site
    raise CannotRun(
        "apt knows no Debian mirror: run `apt-get update`, or set KVTIER_DEBIAN_MIRROR to one"
    )

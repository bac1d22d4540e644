"""The real LMCache and vLLM, in an environment of their own: too large for that of other tests."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"
sys.path.insert(0, str(DEPLOY / "local"))

from localcluster.settings import cache_root  # noqa: E402

LOCK = DEPLOY / "locks" / "engines.txt"
NEEDED_BYTES = 12 << 30
"""Installed it has 7 GB, most of it torch and what torch brings; downloads and unpacking come on
top."""
PROGRAM = "import sys; from lmcache.cli.main import main; sys.exit(main())"
"""What the script ``lmcache`` runs. That one is not used: it names its interpreter by a path."""


class CannotInstall(Exception):
    """Why there is no LMCache. One line with the fix."""


def lmcache() -> list[str]:
    """The command of LMCache's own program. Installs it the first time, which takes minutes.

    Raises CannotInstall.
    """
    # Beside what the local cluster keeps.
    below = cache_root().parent / "engines"
    return [str(installed(below) / "bin" / "python"), "-c", PROGRAM]


def installed(below: Path, *, lock: Path = LOCK, needed: int = NEEDED_BYTES) -> Path:
    """The environment of this lock file and this Python, made if it is not there yet.

    One that was begun and not finished is made anew; two callers do not disturb each other.
    Raises CannotInstall.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(version.encode() + lock.read_bytes()).hexdigest()
    home = below / digest[:16]
    try:
        below.mkdir(parents=True, exist_ok=True)
        with (below / f"{home.name}.lock").open("w") as mutex:
            fcntl.flock(mutex, fcntl.LOCK_EX)
            if not (home / ".installed").exists():
                _install(home, lock=lock, needed=needed)
                (home / ".installed").touch()
    except OSError as error:
        raise CannotInstall(f"{below}: {error.strerror}; name another with KVTIER_CACHE") from None
    return home


def _install(home: Path, *, lock: Path, needed: int) -> None:
    shutil.rmtree(home, ignore_errors=True)
    free = shutil.disk_usage(home.parent).free
    if free < needed:
        raise CannotInstall(
            f"{home.parent}: {free >> 30} GiB free, LMCache takes {needed >> 30}; "
            "make room or name another with KVTIER_CACHE"
        )
    print(f"installing {lock.name} into {home}, once: minutes", flush=True)
    _run(sys.executable, "-m", "venv", str(home))
    pip = (str(home / "bin" / "python"), "-m", "pip", "install", "--quiet")
    # The file has all of it, and pip 23 wants hashes for what it derives from extras again.
    _run(*pip, "--no-deps", "--require-hashes", "-r", str(lock))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout or "no reason").replace("[notice]", "")
        # What pip says of an error may have many lines.
        said = " ".join(said[max(0, said.rfind("ERROR:")) :].removeprefix("ERROR:").split())
        raise CannotInstall(f"`{' '.join(command[1:4])}`: {said[:300]}")

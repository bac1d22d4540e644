"""Which valkey-server a trial runs, and what is said of one that it cannot."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvtier.trial import program
from kvtier.trial.program import NoServer, find_program

EMPTY = "/nonexistent"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A program on PATH that answers --version so; real ones are found where they are."""
    monkeypatch.setitem(os.environ, "PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(answer: str) -> Path:
        file = tmp_path / "valkey-server"
        file.write_text(f"#!/bin/sh\necho '{answer}'\n")
        file.chmod(0o755)
        return file

    return write


def refusal(named: str | None = None) -> str:
    with pytest.raises(NoServer) as refused:
        find_program(named, series="9.1")
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("series", ["8.1", "9.1"])
def test_the_python_packages_bring_one_of_each_series(
    series: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "PATH", EMPTY)
    found = find_program(None, series=series)
    assert found.series == series
    assert str(found).startswith(f"Valkey {series}.")


def test_an_installed_one_comes_first(server: Callable[[str], Path]) -> None:
    path = server("Valkey server v=9.1.0 sha=0")
    assert find_program(None, series="9.1").path == path


def test_one_of_the_tier_s_series_comes_before_another(server: Callable[[str], Path]) -> None:
    path = server("Valkey server v=10.0.1 sha=0")
    assert find_program(None, series="9.1").path != path
    assert find_program(None, series="10.0").version == (10, 0, 1)


def test_without_the_tier_s_series_another_one_has_to_do(
    server: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "PACKAGES", {"no_such_package": "*"})
    server("Valkey server v=10.0.1 sha=0")
    assert find_program(None, series="9.1").series == "10.0"


def test_without_any_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PATH", EMPTY)
    monkeypatch.setattr(program, "PACKAGES", {"no_such_package": "*"})
    assert refusal() == f"no valkey-server found; {program.HOW}"


def test_one_that_is_too_old_is_named(
    server: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = server("Valkey server v=8.0.9 sha=0")
    said = f"{path}: Valkey 8.0.9 is too old; {program.HOW}"
    assert refusal(str(path)) == refusal("valkey-server") == said
    assert find_program(None, series="9.1").series == "9.1"
    monkeypatch.setattr(program, "PACKAGES", {})
    assert refusal() == said


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("/nonexistent/server", "/nonexistent/server: No such file or directory; install"),
        (str(Path(__file__).parent), "Permission denied; install"),
        (sys.executable, f"{sys.executable}: not a valkey-server; install"),
        ("", "install"),
    ],
)
def test_what_is_no_server_is_one_line(named: str, said: str) -> None:
    assert said in refusal(named)


def test_redis_is_no_valkey(server: Callable[[str], Path]) -> None:
    path = server("Redis server v=7.4.2 sha=0")
    assert refusal(str(path)).startswith(f"{path}: not a valkey-server")

"""``kvtier try``: a real tier of real servers for a moment, and nothing of it afterwards."""

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import valkey
from command_line import PROGRAM, kvtier, kvtier_at_terminal, kvtier_process, one_line
from leftovers import assert_nothing_left, processes, servers, until

from kvtier.api.load import load_file
from kvtier.render.valkey_conf import valkey_conf

SmallFile = Callable[..., Path]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def clean(place: Path) -> Iterator[None]:
    """Whatever a test did: its trial's processes are gone when the next begins."""
    yield
    for pid in processes(place):
        os.kill(pid, signal.SIGKILL)


def tried(file: Path, *arguments: str) -> dict[str, Any]:
    completed = kvtier_process("try", "-f", file, "-o", "json", *arguments)
    assert (completed.returncode, completed.stderr) == (0, b"")
    document: dict[str, Any] = json.loads(completed.stdout)
    return document


@pytest.mark.parametrize("striping", ["Shard", "Hash"])
def test_a_tier_is_run_measured_and_gone(small_file: SmallFile, place: Path, striping: str) -> None:
    content = tried(small_file(pool={"striping": striping}))
    assert content["ranks"] == "2/2"
    assert [each["ready"] for each in content["rankStates"]] == [True, True]
    assert all(each["bytesPerSecond"] > 1e6 for each in content["rankStates"])
    fetched = content["referenceFetch"]
    assert "wrong" not in fetched
    assert fetched["tokens"] == 256 * fetched["chunks"] == 4096
    assert fetched["bytes"] >= 4096 * content["breakEven"]["bytesPerToken"]
    assert fetched["recomputeSeconds"] == pytest.approx(4096 / 20000)
    assert_nothing_left(place)


def test_a_bar_at_a_terminal_says_what_goes_on_and_goes_away(
    small_file: SmallFile, place: Path
) -> None:
    done = kvtier_at_terminal("try", "-f", small_file(), "-o", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["ranks"] == "2/2"
    drawn = done.stderr.decode()
    # What takes less than half a second is not drawn before it is over.
    for share, what in (("33", "each rank is measured"), ("67", "a prompt is stored and fetched")):
        assert re.search(rf"] +{share} %  \d+ s  {what}", drawn)
    assert drawn.endswith("\r\x1b[K")
    assert_nothing_left(place)


def test_what_was_measured_here_is_no_verdict_about_a_network(small_file: SmallFile) -> None:
    content = tried(small_file())
    assert (content["verdict"], content["reason"]) == ("Unknown", "NotMeasured")
    assert content["message"].startswith("Loopback was measured, which says nothing of your")
    assert content["declared"]["verdict"] == "Pays"
    measured = content["measured"]
    assert measured["evidence"] == "Loopback"
    ratio = measured["bytesPerSecond"] / content["breakEven"]["bytesPerSecond"]
    assert measured["ratio"] == pytest.approx(ratio, rel=1e-3)
    assert measured["bytesPerSecond"] <= measured["linkBytesPerSecond"]
    rows = {row["tokens"]: row for row in content["breakEven"]["perLength"]}
    # Two ranks of 96Mi hold 54,784 tokens.
    assert rows[65_536]["fits"] is False
    assert "fits" not in rows[32_768]


def test_a_person_sees_one_screen(small_file: SmallFile, place: Path) -> None:
    completed = kvtier_process("try", "-f", small_file())
    text = completed.stdout.decode()
    assert (completed.returncode, completed.stderr) == (0, b"")
    assert "Verdict: Unknown (NotMeasured)\n" in text
    assert "On this machine: Valkey 9.1." in text
    assert "every byte right; computing them takes" in text.replace("\n", " ")
    assert len(text.splitlines()) < 40
    assert max(map(len, text.splitlines())) <= 92
    assert "kvtt-" not in text
    assert_nothing_left(place)


def kept(file: Path, *arguments: str) -> tuple[Path, int]:
    found = tried(file, "--keep", *arguments)["kept"]
    return Path(found["engineConfiguration"]), found["pid"]


def test_kept_ranks_have_the_rendered_settings_and_users_and_loopback_only(
    small_file: SmallFile, place: Path
) -> None:
    file = small_file()
    engine, _ = kept(file)
    connection = json.loads((engine / "connection.json").read_text())
    expected = valkey_conf(load_file(str(file)).spec)
    settings = dict(line.split(" ", 1) for line in expected.splitlines())
    for each in connection["ranks"]:
        home = engine.parent / f"r{each['rank']}"
        assert (home / "valkey.conf").read_text() == expected
        text = (home / "users.acl").read_text()
        names = {line.split()[1] for line in text.splitlines()}
        assert {"default", "operator", "health", "probe", connection["username"]} <= names
        assert each["host"] == "127.0.0.1"
        client = valkey.Valkey(
            port=each["port"], username=connection["username"], password=connection["password"]
        )
        with client:
            with pytest.raises(valkey.exceptions.NoPermissionError):
                client.execute_command("CONFIG", "GET", "*")
            with pytest.raises(valkey.exceptions.NoPermissionError):
                client.get("another-prefix@x")
            assert client.get(f"{each['prefix']}@x") is None
            assert client.info("memory")["maxmemory"] == int(settings["maxmemory"])
            clients = client.info("clients")
            assert clients["maxclients"] == int(settings["maxclients"])
        with valkey.Valkey(port=each["port"]) as nobody, pytest.raises(valkey.AuthenticationError):
            nobody.ping()
    for pid in servers(place):
        assert listening(pid) == {"0100007F"}


def listening(pid: int) -> set[str]:
    """Addresses on which the process's sockets listen, as /proc/net has them."""
    mine = {
        str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()
    }
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                found.add(fields[1].split(":")[0])
    return found


def test_kept_files_are_private_and_engines_can_use_them(
    small_file: SmallFile, place: Path
) -> None:
    engine, pid = kept(small_file())
    assert engine.parent.parent == place
    for path in (engine.parent, *engine.parent.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
    adapter = json.loads((engine / "l2-adapter-r1.json").read_text())["adapter_params"]
    ports = [each["port"] for each in json.loads((engine / "connection.json").read_text())["ranks"]]
    assert adapter["ranks"][0] | {"prefix": ""} == {
        "host": "127.0.0.1",
        "port": ports[1],
        "prefix": "",
    }
    assert Path(adapter["credentials"]).read_text() == (engine / "token").read_text()
    assert zipfile.is_zipfile(engine / "kvtier_lmcache.zip")
    load = kvtier_process("loadtest", "--secret-dir", engine, "--duration", "2s", "-o", "json")
    assert load.returncode == 0
    report = json.loads(load.stdout)
    assert report["wrong"] == {"corrupt": 0, "foreign": 0, "stale": 0}
    assert report["bytes"]["written"] > 0
    assert len(servers(place)) == 2
    os.kill(pid, signal.SIGTERM)
    assert_nothing_left(place)


def test_the_screen_says_how_to_use_and_to_end_what_was_kept(
    small_file: SmallFile, place: Path
) -> None:
    completed = kvtier_process("try", "-f", small_file(), "--keep")
    text = completed.stdout.decode()
    assert "The ranks stay until you stop them." in text
    load = text.split("load them")[1].splitlines()[0].split()
    end = text.split("stop, and remove all")[1].splitlines()[0].split()
    assert load[:3] == ["kvtier", "loadtest", "--secret-dir"]
    assert Path(load[3]).parent.parent == place
    assert end[0] == "kill"
    assert len(servers(place)) == 2
    subprocess.run(end, check=True)
    assert_nothing_left(place)


def test_when_all_kept_ranks_have_died_the_keeper_goes_too(
    small_file: SmallFile, place: Path
) -> None:
    kept(small_file())
    for pid in servers(place):
        os.kill(pid, signal.SIGKILL)
    assert_nothing_left(place)


def started(file: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [PROGRAM, "try", "-f", file],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def probing(place: Path) -> bool:
    return any("spawn_main" in line for line in processes(place).values())


MOMENTS: dict[str, Callable[[Path], object]] = {
    "a directory": lambda place: list(place.iterdir()),
    "a server": servers,
    "a probe": probing,
}


ENDS = [
    *((moment, number) for moment in MOMENTS for number in (signal.SIGINT, signal.SIGKILL)),
    *(("a server", number) for number in (signal.SIGTERM, signal.SIGHUP)),
]


@pytest.mark.parametrize(("moment", "number"), ENDS)
def test_however_it_is_ended_nothing_is_left(
    small_file: SmallFile, place: Path, moment: str, number: signal.Signals
) -> None:
    process = started(small_file())
    assert until(lambda: MOMENTS[moment](place))
    # As a terminal does: the whole group hears it.
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert out == b""
    if number is not signal.SIGKILL:
        assert process.returncode == 130
        assert err == b"kvtier: stopped; nothing is left behind\n"
    assert_nothing_left(place)


def test_a_second_and_a_third_ctrl_c_change_nothing(small_file: SmallFile, place: Path) -> None:
    process = started(small_file())
    assert until(lambda: servers(place))
    while process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        until(lambda: process.poll() is not None, seconds=0.05)
    _, err = process.communicate()
    assert (process.returncode, err) == (130, b"kvtier: stopped; nothing is left behind\n")
    assert_nothing_left(place)


def test_servers_die_with_a_keeper_that_was_killed(small_file: SmallFile, place: Path) -> None:
    process = started(small_file())
    assert until(lambda: len(servers(place)) == 2)
    [keeper] = [pid for pid, line in processes(place).items() if "trial.keeper" in line]
    os.kill(keeper, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert b"Traceback" not in err
    assert_nothing_left(place)


def test_a_rank_that_dies_is_named_and_the_exit_code_says_so(
    small_file: SmallFile, place: Path
) -> None:
    process = started(small_file())
    # Before that it is one that did not start.
    assert until(lambda: probing(place))
    os.kill(max(servers(place)), signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (1, b"")
    text = out.decode()
    assert "not measured:" in text or "no    -" in text
    assert_nothing_left(place)


def test_a_server_that_does_not_start_is_one_line(
    small_file: SmallFile, place: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken-server"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exec echo "Valkey server v=9.1.2"\n'
        "echo 'FATAL: no such setting'; exit 1\n"
    )
    broken.chmod(0o755)
    completed = kvtier_process("try", "-f", small_file(), "--valkey-server", str(broken))
    assert completed.returncode == 1
    assert completed.stderr.decode() == (
        f"kvtier: r0: {broken} did not start: FATAL: no such setting\n"
    )
    assert_nothing_left(place)


def test_bad_input_is_one_line_and_starts_nothing(
    small_file: SmallFile, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = small_file()
    assert "not a valkey-server" in one_line(
        kvtier("try", "-f", file, "--valkey-server", sys.executable)
    )
    monkeypatch.setattr("kvtier.cli.trial.available_memory", lambda: 1 << 20)
    assert "2 ranks get 0 B of memory each here" in one_line(kvtier("try", "-f", file))
    assert "No such file" in one_line(kvtier("try", "-f", "/nonexistent.yaml"))
    assert list(place.iterdir()) == []


def test_a_crash_of_the_command_leaves_nothing(
    small_file: SmallFile, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr("kvtier.cli.trial.run_probe", crash)
    with pytest.raises(RuntimeError, match="on purpose"):
        kvtier("try", "-f", small_file())
    assert_nothing_left(place)


def test_a_reader_that_has_gone_leaves_nothing_kept(small_file: SmallFile, place: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        completed = kvtier_process("try", "-f", small_file(), "--keep", stdout=write)
    finally:
        os.close(write)
    assert completed.returncode == 2
    assert completed.stderr.count(b"\n") == 1
    assert_nothing_left(place)

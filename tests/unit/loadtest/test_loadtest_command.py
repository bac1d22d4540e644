"""``kvtier loadtest`` as a person runs it."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import PROGRAM, kvtier, kvtier_at_terminal, kvtier_process, one_line
from local_tier import LocalTier, NewLocalTier

LOAD = ("--rate", "10", "--prompt-tokens", "2048", "--prefixes", "2")


def run(tier: LocalTier, *arguments: str) -> dict[str, Any]:
    done = kvtier_process("loadtest", "--secret-dir", tier.secret, "-o", "json", *arguments)
    assert done.returncode == 0, done.stderr.decode()
    assert tier.token not in done.stdout.decode() + done.stderr.decode()
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_engines_share_beginnings_and_the_hit_rate_is_their_share(
    local_tier: NewLocalTier,
) -> None:
    tier = local_tier()
    first = run(tier, *LOAD, "--engines", "2", "--duration", "2s")
    assert first["wrong"] == {"corrupt": 0, "foreign": 0, "stale": 0}
    assert first["outages"] == []
    second = run(tier, *LOAD, "--engines", "2", "--duration", "1s", "--max-bytes", "1G")
    assert (second["tier"], second["engines"], second["endedBy"]) == ("models/chat", 2, "Duration")
    assert second["requests"] >= second["completed"] > 3
    # 1,536 of 2,048 tokens: six chunks of 64 KiB on each of two ranks.
    assert second["hitRate"] == 0.75
    assert second["bytes"]["read"] >= second["completed"] * 6 * 2 * 65536
    assert second["tokens"]["requested"] == second["completed"] * 2048
    parts = {key.split(b"@")[0] for rank in (0, 1) for key in tier.keys(rank)}
    assert parts == {rank["prefix"].encode() for rank in tier.connection()["ranks"]}
    assert {key.split(b"@")[1:4] == [b"example/small", b"01000100", b"0"] for key in tier.keys(0)}
    with tier.engine(1) as client:
        assert {len(client.get(key)) for key in tier.keys(1)} == {65536}


def test_a_hit_is_timed_with_t0_and_beside_what_its_tokens_would_take(
    local_tier: NewLocalTier,
) -> None:
    tier = local_tier(pool={"hitLatency": "30ms", "hitEngineTime": "20ms"})
    run(tier, *LOAD, "--duration", "2s")
    found = run(tier, *LOAD, "--duration", "1s", "--max-bytes", "1G")
    rate = tier.connection()["prefillRate"][0]["tokensPerSecond"]
    assert set(found["recomputeSeconds"].values()) == {round(1536 / rate, 6)}
    assert 0.05 < found["fetchSeconds"]["p50"] < found["ttftSeconds"]["max"]


def test_a_bar_at_a_terminal_says_how_far_it_is_and_goes_away(local_tier: NewLocalTier) -> None:
    tier = local_tier()
    command = ("loadtest", "--secret-dir", tier.secret, "-o", "json", *LOAD, "--duration", "4s")
    done = kvtier_at_terminal(*command)
    assert done.returncode == 0
    assert json.loads(done.stdout)["endedBy"] == "Duration"
    drawn = done.stderr.decode()
    shares = [int(share) for share in re.findall(r"] +(\d+) %  \d+ s  \d+ requests/s", drawn)]
    assert len(set(shares)) > 1
    assert shares == sorted(shares)
    assert shares[-1] < 100
    assert drawn.endswith("\r\x1b[K")
    assert tier.token not in drawn


def test_sigterm_ends_a_run_early_with_a_report(local_tier: NewLocalTier) -> None:
    tier = local_tier()
    process = subprocess.Popen(
        [PROGRAM, "loadtest", "--secret-dir", tier.secret, "-o", "json", "--progress", *LOAD],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    told = json.loads(process.stderr.readline())
    assert told.keys() >= {"at", "requests", "hitRate", "ttftP99Seconds", "errors", "down"}
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    report = json.loads(output)
    assert process.returncode == 0
    assert report["endedBy"] == "Signal"
    assert report["completed"] > 0
    assert report["seconds"] < 29


def test_the_bytes_of_all_engines_together_are_bounded(local_tier: NewLocalTier) -> None:
    tier = local_tier()
    load = ("--rate", "50", *LOAD[2:])
    report = run(tier, *load, "--engines", "2", "--max-bytes", "4Mi")
    assert report["endedBy"] == "Bytes"
    assert 0 < report["bytes"]["read"] + report["bytes"]["written"] <= 4 << 20


def test_a_hung_server_bounds_the_run_all_the_same(local_tier: NewLocalTier) -> None:
    tier = local_tier()
    tier.change(requestTimeoutSeconds=0.3)
    os.kill(tier.servers[1].pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        report = run(tier, *LOAD, "--duration", "1s")
        assert time.monotonic() - begun < 15
    finally:
        os.kill(tier.servers[1].pid, signal.SIGCONT)
    assert report["tokens"]["hit"] == 0, "one rank lost is the tier lost"
    (outage,) = report["outages"]
    assert (outage["rank"], outage["kind"], outage["to"]) == (1, "timeout", None)
    assert report["bytes"]["written"] > 0, "the other rank goes on"


def test_nothing_reachable_fails_and_says_why(local_tier: NewLocalTier) -> None:
    tier = local_tier()
    for server in tier.servers:
        os.kill(server.pid, signal.SIGKILL)
    done = kvtier_process("loadtest", "--secret-dir", tier.secret, *LOAD, "--duration", "300ms")
    assert done.returncode == 1
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith("Tier models/chat, generation ")
    told = sorted(line.partition(" from ")[0] for line in lines[-2:])
    assert told == ["  rank 0 refused", "  rank 1 refused"]
    assert done.stderr.decode().startswith("kvtier: no rank ever answered: rank ")


def test_a_name_of_the_clusters_dns_is_named_outside_of_it(local_tier: NewLocalTier) -> None:
    tier = local_tier()
    ranks = tier.connection()["ranks"]
    tier.change(ranks=[rank | {"host": f"chat-r{rank['rank']}.models.svc"} for rank in ranks])
    done = kvtier_process("loadtest", "--secret-dir", tier.secret, *LOAD, "--duration", "300ms")
    assert done.returncode == 1
    assert re.fullmatch(
        r"kvtier: no rank ever answered: chat-r\d.models.svc was not resolved \(.+\); ranks have "
        r"names of .*\n",
        done.stderr.decode(),
    )


def test_what_does_not_fit_the_store_is_told_at_once(local_tier: NewLocalTier) -> None:
    tier = local_tier()
    tier.change(capacityTokens=4096)
    arguments = ("loadtest", "--secret-dir", tier.secret, "--duration", "300ms", *LOAD[:-2])
    said = (
        "4 beginnings of 1,536 tokens do not fit: the store holds 4,096, and few will be hit; "
        "--prefixes 1 leaves room"
    )
    done = kvtier_process(*arguments, "--prefixes", "4")
    assert done.stderr.decode() == f"kvtier: {said}\n"
    assert kvtier_process(*arguments).stderr == b""
    # A pod's log has both streams: nothing may stand beside a document.
    document = kvtier_process(*arguments, "--prefixes", "4", "-o", "json")
    assert document.stderr == b""
    assert json.loads(document.stdout)["notes"] == [said]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "connection.json: not JSON"),
        ("[]", "connection.json: is not usable"),
        ("{}", "connection.json: has no 'striping'"),
        ('{"striping": "Round"}', "connection.json: is not usable"),
    ],
)
def test_a_secret_that_is_none_is_one_line(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "connection.json").write_text(content)
    assert one_line(kvtier("loadtest", "--secret-dir", tmp_path)).startswith(said)


def test_a_directory_without_a_secret_is_one_line(tmp_path: Path) -> None:
    assert "connection.json: No such file" in one_line(kvtier("loadtest", "--secret-dir", tmp_path))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": None}, ""),
        ({"chunkBytesPerRank": 50}, "connection.json: chunkBytesPerRank makes objects of 50 bytes"),
        ({"ranks": []}, "connection.json: ranks is empty"),
        ({"tls": True}, "ca.crt: not usable"),
    ],
)
def test_a_secret_that_cannot_be_used_is_one_line(
    changes: dict[str, Any], said: str, local_tier: NewLocalTier
) -> None:
    tier = local_tier()
    if not said:
        connection = tier.connection()
        del connection["model"]
        (tier.secret / "connection.json").write_text(json.dumps(connection))
        said = "connection.json: has no 'model'"
    else:
        tier.change(**changes)
    assert one_line(kvtier("loadtest", "--secret-dir", tier.secret)).startswith(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prompt-tokens", "255"), "--prompt-tokens: 255 is less than one chunk"),
        (("--prefix-tokens", "5000"), "--prefix-tokens: 5000 is more than the prompt"),
    ],
)
def test_a_load_that_cannot_be_is_one_line(
    arguments: tuple[str, ...], said: str, local_tier: NewLocalTier
) -> None:
    tier = local_tier()
    assert one_line(kvtier("loadtest", "--secret-dir", tier.secret, *arguments)).startswith(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rate", "0"), "argument --rate: '0' is not a number from 0.001"),
        (("--rate", "nan"), "argument --rate: 'nan'"),
        (("--engines", "65"), "argument --engines: '65' is not a whole number from 1 to 64"),
        (("--duration", "30"), "argument --duration: '30' is not a duration"),
        (("--max-bytes", "4GB"), "argument --max-bytes: '4GB' is not a quantity"),
        (("--striping", "Round"), "argument --striping: invalid choice: 'Round'"),
    ],
)
def test_a_flag_that_cannot_be_is_named(arguments: tuple[str, ...], said: str) -> None:
    done = kvtier("loadtest", "--secret-dir", ".", *arguments)
    assert done.returncode == 2
    assert said in done.stderr.decode()

"""``kvtier plan``: verdict by exit code, figures under the names of the status fields, what if."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import kvtier, one_line

TierFile = Callable[..., Path]
FAST = [{"domain": "zone", "bitsPerSecond": "100G", "roundTrip": "50us"}]


def planned(file: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    completed = kvtier("plan", "-f", file, "-o", "json", *arguments)
    assert completed.stderr == b""
    return completed.returncode, json.loads(completed.stdout)


@pytest.mark.parametrize(
    ("changes", "verdict", "code"),
    [
        ({"placement.links": FAST, "pool.hitLatency": "50ms"}, "Pays", 0),
        ({}, "PaysWhenLong", 0),
        (
            {"placement.links": [{"domain": "zone", "bitsPerSecond": "10G", "roundTrip": "1ms"}]},
            "NeverPays",
            3,
        ),
        ({"placement": None}, "Unknown", 4),
        ({"pool.hitLatency": None}, "Unknown", 4),
    ],
)
def test_the_exit_code_is_the_verdict(
    tier_file: TierFile, changes: dict[str, Any], verdict: str, code: int
) -> None:
    found, content = planned(tier_file(changes))
    assert (content["verdict"], found) == (verdict, code)
    table = kvtier("plan", "-f", tier_file(changes))
    assert table.returncode == code
    assert f"Verdict: {verdict}\n" in table.stdout.decode()


BUSY = {"hitTokens": [{"quantile": "1", "tokens": 16384}], "requestsPerSecond": "10"}
TOO_LONG = {"hitTokens": [{"quantile": "1", "tokens": 9_000_000}]}


@pytest.mark.parametrize(
    ("changes", "code", "headline"),
    [
        ({"workload": BUSY}, 1, "Verdict: Pays, but 2 errors below"),
        ({"workload": TOO_LONG}, 1, "Verdict: Pays, but 1 error below"),
        ({"workload": TOO_LONG, "placement": None}, 4, "Verdict: Unknown, and 1 error below"),
        ({"placement.links": [FAST[0] | {"bitsPerSecond": "10G"}]}, 3, "Verdict: NeverPays"),
        ({"model.revision": "main"}, 0, "Verdict: PaysWhenLong"),
    ],
)
def test_an_error_below_a_verdict_is_told_beside_it_and_in_the_exit_code(
    tier_file: TierFile, changes: dict[str, Any], code: int, headline: str
) -> None:
    file = tier_file(changes)
    found, content = planned(file)
    errors = [each for each in content["findings"] if each["severity"] == "Error"]
    assert found == code
    assert content["findings"]
    assert bool(errors) == (code != 0)
    table = kvtier("plan", "-f", file)
    assert table.returncode == code
    assert f"{headline}\n" in table.stdout.decode()


@pytest.mark.parametrize(
    ("changes", "code", "strict"),
    [
        ({}, 0, 0),
        ({"pool.striping": "Hash"}, 0, 0),
        ({"model.revision": "main"}, 0, 1),
        ({"workload": BUSY}, 1, 1),
        ({"pool.striping": "Hash", "placement": None}, 4, 4),
        ({"placement.links": [FAST[0] | {"bitsPerSecond": "10G"}]}, 3, 3),
    ],
)
def test_a_strict_gate_lets_no_warning_pass(
    tier_file: TierFile, changes: dict[str, Any], code: int, strict: int
) -> None:
    file = tier_file(changes)
    lax, content = planned(file)
    assert (lax, planned(file, "--strict")) == (code, (strict, content))


def test_json_has_the_status_fields_unrounded(tier_file: TierFile) -> None:
    _, content = planned(tier_file())
    assert content["breakEven"]["bytesPerToken"] == 327_680
    assert content["breakEven"]["bytesPerSecond"] == 1_638_400_000
    assert content["breakEven"]["minimumHitTokens"] == 3470
    assert content["breakEven"]["perLength"][3] == {
        "tokens": 8192,
        "recomputeSeconds": 1.6384,
        "fetchSeconds": pytest.approx(0.33005 + 8192 * 327_680 / 3.125e9),
        "wins": True,
    }
    assert content["measured"]["bytesPerSecond"] == 3_125_000_000
    assert content["measured"]["evidence"] == "Declared"
    assert content["measured"]["ratio"] == pytest.approx(1.907, abs=5e-4)
    assert content["reason"] == "PaysWhenLong"
    assert content["fixedSeconds"] == pytest.approx(0.33)


def test_yaml_says_the_same_as_json(tier_file: TierFile) -> None:
    file = tier_file({"workload": {"hitTokens": [{"quantile": "0.5", "tokens": 9000}]}})
    _, content = planned(file)
    assert content["gainSeconds"] > 0
    assert content["winningShare"] == 1
    assert yaml.safe_load(kvtier("plan", "-f", file, "-o", "yaml").stdout) == content


def test_the_table_shows_every_figure_to_a_person(tier_file: TierFile) -> None:
    table = kvtier("plan", "-f", tier_file()).stdout.decode()
    for line in (
        "Tier llama-prefill: meta-llama/Llama-3.1-70B-Instruct, KV in bfloat16, 8 ranks",
        "KV of one token  320 KiB stored and moved",
        "80 MiB (256 tokens), 10 MiB on each of 8 ranks",
        "break-even (B*)  13.1 Gb/s",
        "25 Gb/s, round trip 0.05 ms (zone, declared): 1.91 x break-even",
        "330 ms for every hit",
        "minimum hit      3,470 tokens (14 chunks)",
    ):
        assert line in table
    row = next(line for line in table.splitlines() if line.split()[:1] == ["8,192"])
    assert row.split() == ["8,192", "1.64", "s", "1.19", "s", "fetch", "16.4", "Gb/s"]
    row = next(line for line in table.splitlines() if line.split()[:1] == ["1,024"])
    assert row.split() == ["1,024", "205", "ms", "437", "ms", "recompute", "never"]


def test_a_length_that_the_store_cannot_hold_is_no_fetch(tier_file: TierFile) -> None:
    changes = {"store.memoryPerRank": "2Gi", "pool.maxEngines": 1}
    lines = kvtier("plan", "-f", tier_file(changes)).stdout.decode().splitlines()
    held = next(line for line in lines if "the store holds" in line).split()[3]
    assert held == "30,720"
    rows = {line.split()[0]: line for line in lines if line.endswith(("Gb/s", "-"))}
    assert " fetch " in rows["16,384"]
    for length in ("32,768", "131,072"):
        assert rows[length].split()[3:] == ["-", "does", "not", "fit", "-"]
    _, content = planned(tier_file(changes))
    rows = {row["tokens"]: row for row in content["breakEven"]["perLength"]}
    assert "fits" not in rows[16_384]
    assert rows[32_768]["wins"] is True
    assert [rows[length]["fits"] for length in (32_768, 65_536, 131_072)] == [False] * 3


def test_copies_of_kv_heads_are_shown(tier_file: TierFile) -> None:
    file = tier_file({"model.layout": {"gqa": {"layers": 94, "kvHeads": 4, "headDim": 128}}})
    table = kvtier("plan", "-f", file).stdout.decode()
    assert "376 KiB stored and moved (2 copies)" in table


def test_what_the_file_does_not_say_is_named(tier_file: TierFile) -> None:
    changes = {"placement": None, "pool.hitLatency": None}
    table = kvtier("plan", "-f", tier_file(changes)).stdout.decode()
    assert "not declared (placement.links)" in table
    assert "not declared (pool.hitLatency and pool.hitEngineTime)" in table
    assert "not known without link and fixed time" in table


@pytest.mark.parametrize(
    ("asked", "verdict", "code"),
    [
        ("bandwidth=10G", "NeverPays", 3),
        ("bandwidth=10G,compression=3.5", "PaysWhenLong", 0),
        ("bandwidth=100G,hitLatency=10ms", "Pays", 0),
        (" bandwidth=100G, hitLatency=10ms", "Pays", 0),
        ("roundTrip=10s", "PaysWhenLong", 0),
        ("access=OncePerRequest", "PaysWhenLong", 0),
        ("access=PerTokenStream", "NeverPays", 3),
        ("access=PerTokenAttention,roundTrip=20ms", "NeverPays", 3),
        ("access=PerTokenAttention", "Unknown", 4),
    ],
)
def test_what_if(tier_file: TierFile, asked: str, verdict: str, code: int) -> None:
    found, content = planned(tier_file(), "--what-if", asked)
    assert (content["verdict"], found) == (verdict, code)
    asked = asked.replace(" ", "")
    assert ",".join(f"{name}={value}" for name, value in content["whatIf"].items()) == asked
    table = kvtier("plan", "-f", tier_file(), "--what-if", asked).stdout.decode()
    assert f"Verdict: {verdict}\n" in table
    assert f"What if: {asked.replace(',', ', ')}\n" in table


def test_what_if_changes_only_what_was_asked(tier_file: TierFile) -> None:
    _, before = planned(tier_file())
    _, after = planned(tier_file(), "--what-if", "roundTrip=1ms")
    assert after["measured"]["roundTripSeconds"] == pytest.approx(0.001)
    assert after["measured"]["bytesPerSecond"] == before["measured"]["bytesPerSecond"]
    changed = after["breakEven"]["perLength"][0]["fetchSeconds"]
    assert changed - before["breakEven"]["perLength"][0]["fetchSeconds"] == pytest.approx(0.00095)


def test_a_second_what_if_adds_to_the_first(tier_file: TierFile) -> None:
    both = ("--what-if", "bandwidth=5G", "--what-if", "hitLatency=40ms")
    _, content = planned(tier_file(), *both)
    assert content["whatIf"] == {"bandwidth": "5G", "hitLatency": "40ms"}
    assert content["measured"]["bytesPerSecond"] == 625_000_000
    again = kvtier("plan", "-f", tier_file(), *both, "--what-if", "bandwidth=6G")
    assert one_line(again) == "--what-if bandwidth: there twice; keep one"


def test_what_if_can_declare_the_missing_link(tier_file: TierFile) -> None:
    _, declared = planned(tier_file())
    file = tier_file({"placement": None})
    _, content = planned(file, "--what-if", "bandwidth=25G,roundTrip=50us")
    assert content["breakEven"] == declared["breakEven"]
    assert "roundTrip: missing" in one_line(kvtier("plan", "-f", file, "--what-if", "bandwidth=1G"))


def test_token_streams_show_both_times(tier_file: TierFile) -> None:
    _, content = planned(tier_file(), "--what-if", "access=PerTokenStream")
    row = next(row for row in content["access"]["perLength"] if row["tokens"] == 8192)
    assert row["secondsPerToken"] == pytest.approx(8192 * 327_680 / 3.125e9 + 50e-6)
    assert row["localSecondsPerToken"] == pytest.approx(8192 * 327_680 / 3.35e12)


def test_compression_shortens_what_crosses_the_link_at_every_token_too(tier_file: TierFile) -> None:
    _, content = planned(tier_file(), "--what-if", "access=PerTokenStream,compression=3.5")
    row = next(row for row in content["access"]["perLength"] if row["tokens"] == 8192)
    assert row["secondsPerToken"] == pytest.approx(8192 * 327_680 / 3.5 / 3.125e9 + 50e-6)
    assert row["localSecondsPerToken"] == pytest.approx(8192 * 327_680 / 3.35e12)


def test_everything_can_be_asked_at_once(tier_file: TierFile) -> None:
    asked = "bandwidth=100G,roundTrip=1ms,compression=2,hitLatency=10ms,hitEngineTime=5ms"
    _, content = planned(tier_file(), "--what-if", asked)
    row = next(row for row in content["breakEven"]["perLength"] if row["tokens"] == 8192)
    assert row["fetchSeconds"] == pytest.approx(0.016 + 8192 * 327_680 / 2 / 12.5e9)
    assert content["measured"]["ratio"] == pytest.approx(12.5e9 / (327_680 * 5000 / 2))


@pytest.mark.parametrize(
    ("asked", "field", "value"),
    [
        ("prefillRate=8000", "pool.prefillRate", [{"tokensPerSecond": 8000}]),
        ("maxEngines=2", "pool.maxEngines", 2),
        ("ranks=4", "pool.ranks", 4),
        ("memoryPerRank=16Gi", "store.memoryPerRank", "16Gi"),
        ("requestsPerSecond=10", "workload.requestsPerSecond", "10"),
        ("hitRate=0.2", "workload.hitRate", "0.2"),
    ],
)
def test_a_field_that_is_asked_for_is_judged_as_if_the_file_had_it(
    tier_file: TierFile, asked: str, field: str, value: Any
) -> None:
    busy = {"workload": BUSY | {"requestsPerSecond": "1", "workingSetTokens": 1_000_000}}
    _, before = planned(tier_file(busy))
    code, found = planned(tier_file(busy), "--what-if", asked)
    changed = busy | {field: value}
    assert found.pop("whatIf") == dict([asked.split("=")])
    assert (code, found) == planned(tier_file(changed))
    assert before != found


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ("speed=1", "--what-if speed: not known; write one of bandwidth"),
        ("bandwidth", "--what-if bandwidth: no value; write bandwidth=100G"),
        ("bandwidth=1G,bandwidth=2G", "--what-if bandwidth: there twice"),
        ("bandwidth=fast", "--what-if bandwidth: 'fast' has the wrong form; write bits per"),
        ("bandwidth=1", "--what-if bandwidth: 1 is not"),
        ("roundTrip=0.02", "--what-if roundTrip: '0.02' has the wrong form; write a duration"),
        ("hitLatency=1d", "--what-if hitLatency: '1d' has the wrong form; write a duration"),
        ("ranks=many", "--what-if ranks: 'many' is not a whole number; write ranks=4"),
        ("ranks=0", "--what-if ranks: 0 is below 1"),
        ("prefillRate=0", "--what-if prefillRate: 0 is below 1"),
        ("memoryPerRank=64MB", "--what-if memoryPerRank: '64MB' has the wrong form"),
        ("memoryPerRank=1Gi", "--what-if memoryPerRank: 1Gi leaves room for 0 chunks"),
        ("hitRate=2", "--what-if hitRate: 2 is"),
        ("compression=0", "--what-if compression: '0' is not from 1 to 1000"),
        ("compression=nan", "--what-if compression: 'nan'"),
        ("compression=1_0", "--what-if compression: '1_0'"),
        ("compression=1e2", "--what-if compression: '1e2'"),
        ("compression=much", "--what-if compression: 'much'"),
        ("access=PerLayer", "--what-if access: 'PerLayer' is not known; write one of OncePerReq"),
    ],
)
def test_a_bad_what_if_is_one_line(tier_file: TierFile, asked: str, complaint: str) -> None:
    assert complaint in one_line(kvtier("plan", "-f", tier_file(), "--what-if", asked))

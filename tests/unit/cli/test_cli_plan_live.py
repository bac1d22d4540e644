"""``kvtier plan --live`` against an API server in memory: nodes, engines, and what was measured."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import kvtier, one_line
from pool_objects import engine, node

from kvtier.cli import live
from kvtier.cluster.fake import FakeCluster
from kvtier.cluster.protocol import NODE, TIER, Forbidden, Unavailable

TierFile = Callable[..., Path]
AT = (datetime.now(UTC) - timedelta(hours=4, minutes=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
MEASURED = {
    "bytesPerSecond": 2_000_000_000,
    "roundTripSeconds": 0.0002,
    "evidence": "Probed",
    "at": AT,
    "node": "n1",
    "ratio": 1.2,
}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster()

    @asynccontextmanager
    async def connect(**_: Any) -> AsyncIterator[FakeCluster]:
        yield made

    monkeypatch.setattr(live, "connect", connect)
    monkeypatch.setattr(live, "default_namespace", lambda **_: "here")
    for name, zone in (("n0", "a"), ("n1", "a"), ("n2", "b")):
        made.seed(node(name, zone))
    made.seed(engine("e0", "n1"))
    return made


def applied(cluster: FakeCluster, *, on: str = "n0", **status: Any) -> None:
    known = {
        "domain": "zone=a",
        "rankStates": [{"rank": k, "ready": True, "node": on} for k in range(8)],
        "measured": MEASURED,
    }
    cluster.seed(
        {
            "apiVersion": "kvtier.dev/v1alpha1",
            "kind": "KVCacheTier",
            "metadata": {"name": "llama-prefill", "namespace": "models"},
            "spec": {},
            "status": known | status,
        }
    )


def planned(file: Path, *arguments: str) -> dict[str, Any]:
    done = kvtier("plan", "-f", file, "--live", "-o", "json", *arguments)
    assert done.stderr == b"", done.stderr
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def test_the_measured_link_of_the_live_tier_is_judged(
    cluster: FakeCluster, tier_file: TierFile
) -> None:
    applied(cluster)
    content = planned(tier_file())
    assert content["measured"] == {
        "bytesPerSecond": 2_000_000_000,
        "roundTripSeconds": 0.0002,
        "evidence": "Probed",
        "ratio": pytest.approx(2e9 / 1.6384e9),
        "at": AT,
        "node": "n1",
    }
    assert "measured 4 h ago from n1" in content["message"]
    assert (content["nodes"], content["domain"]) == (3, "zone=a")
    shown = kvtier("plan", "-f", tier_file(), "--live").stdout.decode()
    assert "16 Gb/s, round trip 0.2 ms (probed 4 h ago from n1): 1.22 x break-even" in shown
    assert "The link was measured; all else is the file's own figures." in shown
    assert "3 of the cluster: 1 engines (1 Ready) on 1 of them, 8 of 8 ranks on 1" in shown


def test_a_lower_bound_is_judged_as_one(cluster: FakeCluster, tier_file: TierFile) -> None:
    low = MEASURED | {"bytesPerSecond": 1_000_000_000, "lowerBound": True}
    applied(cluster, measured=low)
    done = kvtier("plan", "-f", tier_file(), "--live")
    assert done.returncode == 4
    assert b"link             at least 8 Gb/s" in done.stdout


def test_engines_that_are_quicker_than_declared_are_judged_as_they_are(
    cluster: FakeCluster, tier_file: TierFile
) -> None:
    applied(cluster, breakEven={"observedTokensPerSecond": 10_000})
    done = kvtier("plan", "-f", tier_file(), "--live")
    shown = done.stdout.decode()
    assert done.returncode == 3
    assert "engines prefill  10,000 tokens/s, by their own metrics" in shown
    assert "0.61 x break-even" in shown
    assert "Warning: PrefillRateOff" in shown
    assert "The link was measured, and engines' prefill rate seen; all else" in shown


def test_a_rate_that_is_asked_for_is_judged_instead_of_the_one_that_engines_show(
    cluster: FakeCluster, tier_file: TierFile
) -> None:
    applied(cluster, breakEven={"observedTokensPerSecond": 10_000})
    content = planned(tier_file(), "--what-if", "prefillRate=4000")
    assert content["breakEven"]["bytesPerSecond"] == 327_680 * 4000
    assert "observedTokensPerSecond" not in content["breakEven"]


def test_what_if_starts_from_what_was_measured(cluster: FakeCluster, tier_file: TierFile) -> None:
    applied(cluster)
    changed = planned(tier_file({"placement": None}), "--what-if", "bandwidth=100G")["measured"]
    assert changed["evidence"] == "Declared"
    assert changed["bytesPerSecond"] == 12_500_000_000
    assert changed["roundTripSeconds"] == pytest.approx(0.0002)
    kept = planned(tier_file(), "--what-if", "hitLatency=1ms")["measured"]
    assert kept["evidence"] == "Probed"


def test_the_domain_that_was_chosen_stands(cluster: FakeCluster, tier_file: TierFile) -> None:
    applied(cluster, on="n2", domain="zone=b")
    content = planned(tier_file())
    assert content["domain"] == "zone=b"
    assert [found["reason"] for found in content["findings"]] == ["PoolLeftDomain"]


@pytest.mark.parametrize("served", [True, False], ids=["not applied", "kvtier not installed"])
def test_a_tier_that_is_not_there_yet_is_judged_by_what_it_declares(
    cluster: FakeCluster, tier_file: TierFile, served: bool
) -> None:
    if not served:
        cluster.served.discard(TIER)
    content = planned(tier_file())
    assert content["measured"]["evidence"] == "Declared"
    assert content["engines"] == {"total": 1, "ready": 1}
    assert content["rankStates"] == []


def test_the_namespace_is_the_flags_else_the_files_else_the_contexts(
    cluster: FakeCluster, tier_file: TierFile
) -> None:
    cluster.seed(engine("e0", "n1", namespace="other"))
    cluster.seed(engine("e1", "n1", namespace="other"))
    for name in ("e0", "e1", "e2"):
        cluster.seed(engine(name, "n1", namespace="here"))
    file = tier_file()
    assert planned(file)["engines"]["total"] == 1
    assert planned(file, "-n", "other")["engines"]["total"] == 2
    file.write_text(file.read_text().replace("  namespace: models\n", ""))
    assert planned(file)["engines"]["total"] == 3


def test_what_may_not_be_read_is_one_line_with_the_way_out(
    cluster: FakeCluster, tier_file: TierFile
) -> None:
    cluster.fail(Forbidden(status=403, reason="Forbidden", message="not nodes"), kind=NODE)
    said = one_line(kvtier("plan", "-f", tier_file(), "--live"))
    assert said.startswith("the cluster: 403 Forbidden: not nodes; ")
    assert "--nodes" in said
    cluster.fail(Unavailable(status=0, reason="Timeout", message="no answer"), kind=NODE)
    said = one_line(kvtier("plan", "-f", tier_file(), "--context", "far"))
    assert said == "no answer; check the kubeconfig and its context"


def test_a_picture_is_of_the_measured_link(
    cluster: FakeCluster, tier_file: TierFile, tmp_path: Path
) -> None:
    applied(cluster)
    drawn = tmp_path / "plot.svg"
    assert kvtier("plan", "-f", tier_file(), "--live", "--plot", drawn).stderr == b""
    assert "link, 16 Gb/s" in drawn.read_text()

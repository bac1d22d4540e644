"""The CRD as a real API server sees it."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apiserver_manifests import manifests
from apiserver_process import ApiServer
from controller_process import wait_for

from kvtier.api.load import parse_tier
from kvtier.generation.record import new_record
from kvtier.placement.judgement import judge
from kvtier.plan.admission import admission_status
from kvtier.plan.observed import NodeFacts, Observed, Plan, RankState
from kvtier.plan.status import Outcome, project, refused

SAMPLES = Path(__file__).parents[2] / "deploy" / "samples"
TIERS = [path for path in sorted(SAMPLES.glob("*.yaml")) if path.stem != "prefill-pool"]
NOW = "2026-11-29T12:00:00Z"
LINK = {"domain": "zone", "bitsPerSecond": "25G", "roundTrip": "50us"}


def document(name: str) -> dict[str, Any]:
    found = {
        "apiVersion": "kvtier.dev/v1alpha1",
        "kind": "KVCacheTier",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "model": {
                "name": "m",
                "revision": "r",
                "kvCacheDtype": "bfloat16",
                "layout": {"gqa": {"layers": 2, "kvHeads": 8, "headDim": 64}},
            },
            "pool": {
                "ranks": 2,
                "prefillRate": [{"tokensPerSecond": 5000}],
                "hitLatency": "20ms",
                "hitEngineTime": "0s",
            },
            "store": {"memoryPerRank": "64Gi"},
            "placement": {"links": [LINK]},
        },
    }
    return copy.deepcopy(found)


@pytest.fixture
def live(apiserver: ApiServer) -> Iterator[dict[str, Any]]:
    """A tier that the API server has."""
    created = apiserver.apply(document("columns"), "-o", "json")
    assert created.code == 0, created.message
    yield json.loads(created.out)
    apiserver.kubectl("delete", "kvt", "columns")


def apply_status(apiserver: ApiServer, status: dict[str, Any]) -> None:
    body = {key: document("columns")[key] for key in ("apiVersion", "kind", "metadata")}
    written = apiserver.apply(
        body | {"status": status}, "--server-side", "--subresource=status", "--field-manager=kvtier"
    )
    assert written.code == 0, written.message


def status_of(live: dict[str, Any]) -> dict[str, Any]:
    """A status as the reconciler writes it."""
    tier = parse_tier(live)
    record = new_record(tier.spec, operator_token="a" * 32, engine_token="b" * 32)
    ranks = tuple(
        RankState(rank=rank, node="node-1", ready=rank == 0, started_at=NOW) for rank in range(2)
    )
    nodes = {"node-1": NodeFacts(labels={"topology.kubernetes.io/zone": "zone-a"})}
    admission = admission_status(tier, engines=2, seen=None, view=None, planned=False, now=NOW)
    return project(
        Observed(tier=tier, record=record, nodes=nodes),
        plan=Plan(ranks=ranks),
        outcome=Outcome(),
        judgement=judge(tier.spec),
        admission=admission,
        view=None,
        now=NOW,
    )


def test_the_generated_crd_is_accepted_without_a_structural_violation(
    apiserver: ApiServer,
) -> None:
    found = apiserver.kubectl(
        "get",
        "crd",
        "kvcachetiers.kvtier.dev",
        "-o",
        "jsonpath={range .status.conditions[*]}{.type}={.status} {end}",
    )
    assert "Established=True" in found.out
    assert "NonStructuralSchema" not in found.out


def test_every_field_of_the_status_that_is_written_is_kept(
    apiserver: ApiServer, live: dict[str, Any]
) -> None:
    status = status_of(live)
    apply_status(apiserver, status)
    stored = json.loads(apiserver.kubectl("get", "kvt", "columns", "-o", "json").out)
    assert stored["status"] == status


def test_the_status_of_a_refused_spec_is_kept_as_well(
    apiserver: ApiServer, live: dict[str, Any]
) -> None:
    apply_status(apiserver, status_of(live))
    before = json.loads(apiserver.kubectl("get", "kvt", "columns", "-o", "json").out)
    status = refused(before, reason="InvalidSpec", message="spec.pool: no", now=NOW)
    apply_status(apiserver, status)
    stored = json.loads(apiserver.kubectl("get", "kvt", "columns", "-o", "json").out)
    assert stored["status"] == status


def test_the_columns_answer_at_one_glance(apiserver: ApiServer, live: dict[str, Any]) -> None:
    status = status_of(live)
    apply_status(apiserver, status)
    head, row = apiserver.kubectl("get", "kvt", "columns").out.splitlines()
    names = head.split()
    assert names == ["NAME", "READY", "RANKS", "VERDICT", "RATIO", "GENERATION", "ADMISSION", "AGE"]
    if "ratio" not in status.get("measured", {}):
        names.remove("RATIO")
    cells = dict(zip(names, row.split(), strict=True))
    assert cells["READY"] == "False"
    assert cells["RANKS"] == "1/2"
    assert cells["VERDICT"] == status["verdict"]
    assert cells["GENERATION"] == status["generations"][0]["id"]


def test_a_spec_cannot_be_changed_through_the_status(
    apiserver: ApiServer, live: dict[str, Any]
) -> None:
    edited = copy.deepcopy(live)
    edited["spec"]["pool"]["maxEngines"] = 3
    edited["status"] = {"ranks": "0/2"}
    answer = apiserver.kubectl(
        "replace", "--subresource=status", "-f", "-", stdin=json.dumps(edited)
    )
    assert answer.code == 0, answer.message
    stored = json.loads(apiserver.kubectl("get", "kvt", "columns", "-o", "json").out)
    assert stored["spec"]["pool"]["maxEngines"] == 8
    assert stored["status"]["ranks"] == "0/2"


def test_explain_tells_a_person_what_a_field_is(apiserver: ApiServer) -> None:
    # A server that knows a CRD publishes its fields a moment later.
    said = wait_for(lambda: apiserver.kubectl("explain", "kvt.spec.pool.ranks").out)
    shown = " ".join(said.split())
    assert "FIELD: ranks <integer>" in shown
    assert "W, the number of workers of one engine, and of Valkeys of the tier." in shown


@pytest.mark.parametrize("verb", ["create", "replace", "server-side"])
def test_an_unknown_field_is_refused_by_every_way_of_writing(
    apiserver: ApiServer, live: dict[str, Any], verb: str
) -> None:
    body = document("columns" if verb == "replace" else "unknown")
    body["spec"]["pool"]["rank"] = 8
    arguments = ["apply", "--server-side"] if verb == "server-side" else [verb]
    answer = apiserver.kubectl(*arguments, "-f", "-", stdin=json.dumps(body))
    assert answer.code != 0
    assert "spec.pool.rank" in answer.message


def test_the_short_name_and_the_category_find_tiers(
    apiserver: ApiServer, live: dict[str, Any]
) -> None:
    for word in ("kvt", "kvtier", "kvcachetier"):
        assert "columns" in apiserver.kubectl("get", word, "-o", "name").out


def test_the_table_has_a_row_for_every_rule_of_the_crd(apiserver: ApiServer) -> None:
    """A rule that no manifest breaks would be a rule that nobody has seen at work."""
    crd = json.loads(apiserver.kubectl("get", "crd", "kvcachetiers.kvtier.dev", "-o", "json").out)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    said = " ".join(manifest.kubectl or "" for manifest in manifests())
    unseen = {message for message in rule_messages(schema) if message not in said}
    assert not unseen


def rule_messages(schema: dict[str, Any]) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield rule["message"]
    for below in schema.get("properties", {}).values():
        yield from rule_messages(below)
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from rule_messages(schema[key])


@pytest.mark.parametrize("sample", TIERS, ids=lambda path: path.stem)
def test_applying_a_sample_again_changes_nothing(apiserver: ApiServer, sample: Path) -> None:
    # A default that the server writes into a list item would make each apply a change, and show
    # the tier as out of sync in Git for ever.
    arguments = ("apply", "-f", str(sample), "--namespace=default")
    assert apiserver.kubectl(*arguments).out.strip().endswith("created")
    again = apiserver.kubectl(*arguments)
    apiserver.kubectl("delete", "-f", str(sample), "--namespace=default")
    assert {line.rsplit(" ", 1)[1] for line in again.out.splitlines()} == {"unchanged"}

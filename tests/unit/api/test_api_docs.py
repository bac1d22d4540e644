"""The pages that people read say what the code does."""

import re
from pathlib import Path
from typing import Any

import pytest
from tiers import SMALLEST, changed

from kvtier.api import reasons, reference
from kvtier.api.base import Change
from kvtier.api.load import parse_tier
from kvtier.api.types import KVCacheTier
from kvtier.generation.identity import generation_id
from kvtier.placement.domain import Domain
from kvtier.render.names import RESTART_HASH
from kvtier.render.statefulset import statefulset

DOCS = Path(__file__).parents[3] / "docs"
MLA = {"layers": 61, "kvLoraRank": 512, "qkRopeHeadDim": 64}
LINK = {"domain": "zone", "bitsPerSecond": "25G", "roundTrip": "50us"}

# Another value for each field, in place of the smallest tier's.
EDITS: dict[str, Any] = {
    "admission.envoyGateway": {"routes": ["chat"], "replicas": 2},
    "model.name": "other",
    "model.revision": "other",
    "model.kvCacheDtype": "float16",
    "model.tokenizerRevision": "other",
    "model.salt": "other",
    "model.identity": {"rope": "other"},
    "model.layout.gqa.layers": 40,
    "model.layout.gqa.kvHeads": 4,
    "model.layout.gqa.headDim": 64,
    "pool.parallelism": {"tensor": 4, "pipeline": 2},
    "pool.chunkTokens": 128,
    "pool.prefillRate": [{"tokens": 1, "tokensPerSecond": 6000}],
    "pool.hitLatency": "1ms",
    "pool.hitEngineTime": "1ms",
    "pool.maxEngines": 4,
    "pool.engine.connector": "Generic",
    "pool.engine.adapter": "Stock",
    "pool.engine.l1Size": "20Gi",
    "pool.engine.loadFailurePolicy": "Fail",
    "pool.engine.vllmVersion": "0.14.0",
    "workload.hitTokens": [{"quantile": "0.5", "tokens": 10}],
    "workload.promptTokens": [{"quantile": "0.5", "tokens": 10}],
    "workload.requestsPerSecond": "0.5",
    "workload.hitRate": "0.5",
    "workload.targetTTFT": "2s",
    "workload.workingSetTokens": 1000000,
    "store.image": "docker.io/valkey/valkey:other",
    "store.version": "8.1",
    "store.memoryPerRank": "32Gi",
    "store.cpu": 8,
    "store.ioThreads": 2,
    "store.eviction": "LFU",
    "store.tolerations": [{"operator": "Exists"}],
    "store.nodeSelector": {"a": "b"},
    "store.priorityClassName": "other",
    "store.imagePullSecrets": [{"name": "other"}],
    "store.labels": {"a": "b"},
    "store.annotations": {"a": "b"},
    "store.tls": {"secretName": "other"},
    "placement.domains": [{"name": "zone", "key": "other"}],
    "placement.within": "zone",
    "placement.enforcement": "Required",
    "placement.spread": "None",
    "placement.links": [LINK],
    "placement.onReject": "Block",
    "placement.probe.interval": "1h",
    "rollout.onPoolDrift": "NewGeneration",
    "rollout.drainTimeout": "2h",
    "rollout.credentialEpoch": 1,
    "rollout.revocation": "Immediate",
    "admission.mode": "Enforce",
    "admission.utilization": "0.7",
    "admission.floor": "0.2",
    "paused": True,
}


def documented_changes() -> dict[str, str]:
    """What a change does, by field, as docs/api.md says."""
    rows = [line.split(" | ") for line in reference.markdown().splitlines() if line[:3] == "| `"]
    return {row[0].strip("| `"): row[5] for row in rows if len(row) >= 7}


def restart_hash(tier: KVCacheTier) -> str:
    return str(template(tier)["metadata"]["annotations"][RESTART_HASH])


def template(tier: KVCacheTier) -> Any:
    """The pod's, of a rank whose tier's engines have chosen a domain, by another label."""
    domain = Domain("rack", "example.com/rack", "r1")
    image = "docker.io/valkey/valkey:9.1"
    return statefulset(tier, 0, image=image, domain=domain)["spec"]["template"]


def test_the_page_of_the_api_is_what_the_models_say() -> None:
    assert (DOCS / "api.md").read_text() == reference.markdown(), (
        "run `python -m kvtier.api.reference > docs/api.md`"
    )


@pytest.mark.parametrize("path", EDITS)
def test_a_change_does_what_the_page_says(path: str) -> None:
    # Enough cores, so that another number of I/O threads is no other number of cores.
    base = changed("spec.store.cpu", 4)
    document = changed(f"spec.{path}", EDITS[path])
    document["spec"]["store"].setdefault("cpu", 4)
    if path == "pool.engine.adapter":
        # The other one is not for the smallest tier's striping.
        for each in (base, document):
            each["spec"]["pool"]["striping"] = "Shard"
    before = parse_tier(base)
    after = parse_tier(document)
    said = documented_changes()
    documented = said["pool.parallelism.tensor" if path == "pool.parallelism" else path]
    if generation_id(before.spec) != generation_id(after.spec):
        assert documented == Change.GENERATION
        assert restart_hash(before) == restart_hash(after), "the page says that no rank restarts"
    elif restart_hash(before) != restart_hash(after):
        assert documented == Change.ROLL
    elif template(before)["spec"] != template(after)["spec"] or path == "placement.within":
        # Which domain a level makes of it, the engines say.
        assert documented in (Change.NEXT_START, Change.LIVE_FROM_9_1)
    else:
        assert documented in (Change.LIVE, Change.LIVE_FROM_9_1)


def test_every_field_that_can_change_is_tried() -> None:
    cannot = {"pool.ranks", "pool.striping"}
    one_value = {"pool.engine.version"}
    other_layouts = {
        path for path in documented_changes() if re.match(r"model\.layout\.(?!gqa)", path)
    }
    tried = {*EDITS, *cannot, *one_value, *other_layouts}
    missing = {
        path
        for path, change in documented_changes().items()
        if change
        and not any(path == each or path.startswith((f"{each}.", f"{each}[")) for each in tried)
    }
    assert not missing


def test_another_layout_is_another_generation() -> None:
    other = parse_tier(changed("spec.model.layout", {"mla": MLA}))
    assert generation_id(other.spec) != generation_id(parse_tier(SMALLEST).spec)


def all_reasons() -> set[str]:
    of_conditions = {each for listed in reasons.CONDITION_REASONS.values() for each in listed}
    return of_conditions | set(reasons.EVENT_REASONS)


def sections() -> list[str]:
    return re.findall(r"^## (\w+)$", (DOCS / "runbooks.md").read_text(), re.MULTILINE)


def test_every_constant_is_a_condition_type_or_a_reason_of_one() -> None:
    constants = {
        value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)
    }
    assert constants == all_reasons() | set(reasons.CONDITION_REASONS)


def test_every_reason_has_a_runbook_section_of_its_name() -> None:
    assert all_reasons() <= set(sections())


def test_no_runbook_section_is_there_twice() -> None:
    assert len(sections()) == len(set(sections()))

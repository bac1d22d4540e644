"""The probe's Secret and Job: what it is told, where it runs, what it may do."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtier.breakeven.tier import assess, chunk_bytes_per_rank
from kvtier.cli.probe_worker import _config
from kvtier.generation.acl import users
from kvtier.generation.record import Record
from kvtier.probe.worker import deadline_seconds
from kvtier.render import probe
from kvtier.render.probe import DEADLINE_SECONDS, PROBE_LABEL, probe_config, probe_job, probe_secret
from kvtier.render.render import RenderSettings, render

IMAGE = "registry.example/kvtier:1"
TOKEN = "kvtt-3c3c3c3c"
MakeRecord = Callable[..., Record]


def pod_of(tier: Any) -> dict[str, Any]:
    spec: dict[str, Any] = probe_job(tier, "gpu-1", image=IMAGE)["spec"]["template"]["spec"]
    return spec


def mounted(tier: Any, record: Record, directory: Path, *, ca: str | None = None) -> Path:
    """The Secret as the kubelet writes it."""
    for name, data in probe_secret(tier, record, ca=ca)["data"].items():
        (directory / name).write_bytes(base64.b64decode(data))
    return directory


def test_the_worker_reads_what_was_rendered(
    make_tier: Any, make_record: MakeRecord, tmp_path: Path
) -> None:
    tier = make_tier()
    config = _config(mounted(tier, make_record(tier), tmp_path), node="gpu-1")
    assert config == replace(probe_config(tier, token=TOKEN), node="gpu-1")
    assert config.ranks[1].host == "llama-r1.models.svc"
    assert config.value_bytes == chunk_bytes_per_rank(tier.spec)
    assert config.password == TOKEN


def test_each_rank_s_prefix_is_the_one_that_its_users_file_lets_the_probe_have(
    make_tier: Any, make_record: MakeRecord
) -> None:
    tier = make_tier()
    for each in probe_config(tier, token=TOKEN).ranks:
        rules = users(make_record(tier), rank=each.rank)["probe"]
        assert f"~{each.prefix}@*" in rules


def test_with_tls_it_is_given_the_ca_and_does_not_start_without(
    make_tier: Any, make_record: MakeRecord
) -> None:
    tier = make_tier({"store.tls": {"secretName": "ranks-tls"}})
    record = make_record(tier)
    data = probe_secret(tier, record, ca="PEM")["data"]
    assert base64.b64decode(data["ca.crt"]) == b"PEM"
    for ca in ("PEM", None):
        text = base64.b64decode(probe_secret(tier, record, ca=ca)["data"]["probe.json"])
        assert json.loads(text)["tls"] is True


def test_a_record_from_before_the_probe_renders_as_it_did(
    make_tier: Any, make_record: MakeRecord
) -> None:
    tier = make_tier()
    before = replace(make_record(tier), probe_token=None)
    names = [each["metadata"]["name"] for each in render(tier, before, settings=RenderSettings())]
    assert "llama-probe" not in names
    with pytest.raises(ValueError, match="token"):
        probe_secret(tier, before)


def test_the_pod_meets_restricted_and_cannot_ask_the_api_server(make_tier: Any) -> None:
    pod = pod_of(make_tier())
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & pod.keys()
    assert {next(k for k in volume if k != "name") for volume in pod["volumes"]} == {"secret"}


def test_it_runs_once_on_its_node_whatever_that_node_keeps_away(make_tier: Any) -> None:
    job = probe_job(make_tier(), "gpu-1", image=IMAGE)
    assert job["spec"]["backoffLimit"] == 0
    assert job["spec"]["activeDeadlineSeconds"] == DEADLINE_SECONDS
    assert 0 < job["spec"]["ttlSecondsAfterFinished"] <= 3600
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["tolerations"] == [{"operator": "Exists"}]
    affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert affinity["nodeSelectorTerms"] == [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]}
    ]
    assert "--node=gpu-1" in pod["containers"][0]["args"]


def test_its_bounds_end_before_the_job_s(make_tier: Any) -> None:
    config = probe_config(make_tier({"pool.ranks": 64}), token=TOKEN)
    assert deadline_seconds(config) < DEADLINE_SECONDS / 2


def test_it_is_guaranteed_what_it_asks_for(make_tier: Any) -> None:
    resources = pod_of(make_tier())["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    # Llama-3.1-70B at 5,000 tokens/s: break-even is 1.64 GB/s, and two of that take two CPUs.
    assert resources["requests"] == {"cpu": "2", "memory": "432Mi"}
    tls = make_tier({"store.tls": {"secretName": "ranks-tls"}})
    assert pod_of(tls)["containers"][0]["resources"]["requests"]["cpu"] == "8"


def test_its_pod_is_taken_for_no_rank_and_no_engine(make_tier: Any) -> None:
    tier = make_tier()
    job = probe_job(tier, "gpu-1", image=IMAGE)
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert labels == job["metadata"]["labels"]
    assert labels[PROBE_LABEL] == "llama"
    assert not {"kvtier.dev/tier", "kvtier.dev/tier-name", "kvtier.dev/rank"} & labels.keys()
    assert job["metadata"]["ownerReferences"][0]["kind"] == "KVCacheTier"


def test_what_the_owner_says_of_pods_holds_for_it_too(make_tier: Any) -> None:
    pod = pod_of(
        make_tier(
            {
                "store.imagePullSecrets": [{"name": "mirror"}],
                "store.priorityClassName": "batch",
            }
        )
    )
    assert pod["imagePullSecrets"] == [{"name": "mirror"}]
    assert pod["priorityClassName"] == "batch"


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ranks=st.sampled_from([1, 2, 8, 64]),
    rate=st.integers(1, 10_000_000),
    chunk=st.sampled_from([16, 256, 1024]),
)
def test_any_tier_s_probe_stays_within_its_bounds(
    ranks: int, rate: int, chunk: int, make_tier: Any
) -> None:
    tier = make_tier(
        {
            "pool.ranks": ranks,
            "pool.prefillRate": [{"tokensPerSecond": rate}],
            "pool.chunkTokens": chunk,
        }
    )
    config = probe_config(tier, token=TOKEN)
    few = 8 * 2 * config.value_bytes * ranks
    assert config.max_bytes <= max(few, probe.MOST_BYTES)
    assert config.max_bytes >= min(
        probe.MOST_BYTES, max(probe.LEAST_BYTES, 2 * assess(tier.spec).break_even)
    )
    cpu = int(pod_of(tier)["containers"][0]["resources"]["limits"]["cpu"])
    assert 1 <= cpu <= ranks

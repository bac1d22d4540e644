"""A rank's pod: what it may do, and which edits restart it."""

from collections.abc import Mapping
from typing import Any

import pytest

from kvtier.render.names import RESTART_HASH
from kvtier.render.statefulset import statefulset
from kvtier.render.valkey_conf import settings

IMAGE = "docker.io/valkey/valkey:9.1"

# What a change does to running ranks. "roll" restarts them all, "live" reaches them by CONFIG SET,
# "nothing" reaches only engines, status or nobody.
EDITS: list[tuple[str, Mapping[str, Any]]] = [
    ("roll", {"store.image": "registry.example/valkey:9.1.2"}),
    ("roll", {"store.version": "8.1"}),
    ("roll", {"store.memoryPerRank": "128Gi"}),
    ("roll", {"store.cpu": "2"}),
    ("roll", {"store.tolerations": [{"key": "a", "operator": "Exists"}]}),
    ("roll", {"store.nodeSelector": {"pool": "gpu"}}),
    ("roll", {"store.priorityClassName": "high"}),
    ("roll", {"store.imagePullSecrets": [{"name": "pull"}]}),
    ("roll", {"store.labels": {"team": "a"}}),
    ("roll", {"store.annotations": {"example.com/a": "b"}}),
    ("roll", {"store.tls": {"secretName": "ranks-tls"}}),
    ("live", {"store.eviction": "LFU"}),
    ("live", {"store.ioThreads": 2}),
    ("live", {"pool.maxEngines": 64}),
    ("nothing", {"store.memoryPerRank": "65536Mi"}),
    ("nothing", {"store.cpu": "1000m"}),
    ("nothing", {"store.labels": {}}),
    ("nothing", {"pool.prefillRate": [{"tokensPerSecond": 1}]}),
    ("nothing", {"pool.hitLatency": "300ms"}),
    ("nothing", {"pool.engine": {"loadFailurePolicy": "Fail"}}),
    ("nothing", {"workload.hitTokens": [{"quantile": "0.5", "tokens": 1000}]}),
    (
        "nothing",
        {"placement.links": [{"domain": "zone", "bitsPerSecond": "25G", "roundTrip": "50us"}]},
    ),
    ("nothing", {"placement.within": "zone"}),
    ("nothing", {"placement.enforcement": "Required"}),
    ("nothing", {"placement.spread": "None"}),
    ("nothing", {"paused": True}),
]


def restart_hash(workload: Mapping[str, Any]) -> str:
    return str(workload["spec"]["template"]["metadata"]["annotations"][RESTART_HASH])


def effect(before: Any, after: Any) -> str:
    ranks = [statefulset(tier, 0, image=IMAGE) for tier in (before, after)]
    if restart_hash(ranks[0]) != restart_hash(ranks[1]):
        return "roll"
    if settings(before.spec).live != settings(after.spec).live:
        return "live"
    return "nothing"


@pytest.mark.parametrize(("expected", "changes"), EDITS, ids=str)
def test_an_edit_restarts_ranks_only_if_it_must(
    expected: str, changes: Mapping[str, Any], make_tier: Any
) -> None:
    assert effect(make_tier(), make_tier(changes)) == expected


def test_every_field_of_the_store_is_in_the_table(make_tier: Any) -> None:
    decided = {path for _, changes in EDITS for path in changes}
    store = type(make_tier().spec.store)
    for name, info in store.model_fields.items():
        assert f"store.{info.alias or name}" in decided


def test_another_tls_secret_restarts_ranks(make_tier: Any) -> None:
    one, other = ({"store.tls": {"secretName": name}} for name in ("one", "other"))
    assert effect(make_tier(one), make_tier(other)) == "roll"
    assert effect(make_tier(one), make_tier()) == "roll"


def test_io_threads_restart_a_series_that_cannot_change_them(make_tier: Any) -> None:
    old = {"store.version": "8.1"}
    assert effect(make_tier(old), make_tier({**old, "store.ioThreads": 2})) == "roll"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "e8319f82fd7b7a9a"),
        ({"store.version": "8.1", "store.labels": {"team": "a"}}, "bba204f6f0e562d6"),
        ({"store.tls": {"secretName": "ranks-tls"}}, "9bc4f597809b0760"),
    ],
)
def test_a_release_restarts_nothing_unasked(
    changes: Mapping[str, Any], expected: str, make_tier: Any
) -> None:
    """These hashes must stay what they are: each change restarts every rank of every tier."""
    assert restart_hash(statefulset(make_tier(changes), 0, image=IMAGE)) == expected


def test_another_default_image_changes_the_template_and_restarts_nothing(make_tier: Any) -> None:
    old, new = (statefulset(make_tier(), 0, image=f"{IMAGE}{patch}") for patch in ("", ".3"))
    assert restart_hash(old) == restart_hash(new)
    assert old["spec"]["template"] != new["spec"]["template"]


def test_the_pod_meets_the_restricted_standard(make_tier: Any) -> None:
    """Pod Security Standards, level restricted, field by field."""
    pod = statefulset(make_tier(), 0, image=IMAGE)["spec"]["template"]["spec"]
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all("hostPort" not in port for port in container["ports"])
    assert {next(k for k in volume if k != "name") for volume in pod["volumes"]} == {
        "configMap",
        "secret",
    }


def test_the_pod_gets_no_token_and_no_environment_of_other_services(make_tier: Any) -> None:
    pod = statefulset(make_tier(), 0, image=IMAGE)["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert "env" not in pod["containers"][0]


def test_a_rank_mounts_its_own_users_and_nothing_else_of_the_secret(make_tier: Any) -> None:
    for rank in (0, 7):
        pod = statefulset(make_tier(), rank, image=IMAGE)["spec"]["template"]["spec"]
        (secret,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        assert secret["items"] == [{"key": f"users-r{rank}.acl", "path": "users.acl"}]
        # The kubelet never updates a file that is mounted by subPath.
        assert all("subPath" not in mount for mount in pod["containers"][0]["volumeMounts"])


def test_no_shell_is_needed(make_tier: Any) -> None:
    (container,) = statefulset(make_tier(), 0, image=IMAGE)["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["command"] == ["valkey-server", "/etc/valkey/valkey.conf"]
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["exec"]["command"] == [
            *("valkey-cli", "-p", "6379", "-e", "--no-auth-warning"),
            *("--user", "health", "--pass", "x", "ping"),
        ]


def test_no_probe_can_kill_a_server_that_holds_a_cache(make_tier: Any) -> None:
    (container,) = statefulset(make_tier(), 0, image=IMAGE)["spec"]["template"]["spec"][
        "containers"
    ]
    assert not container.keys() & {"livenessProbe", "lifecycle"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 600


def test_memory_and_cpu_are_requested_as_they_are_limited(make_tier: Any) -> None:
    tier = make_tier({"store.memoryPerRank": "65536Mi", "store.cpu": "0.5"})
    (container,) = statefulset(tier, 0, image=IMAGE)["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "500m", "memory": "64Gi"}
    assert container["resources"]["limits"] == container["resources"]["requests"]


def test_only_kvtier_replaces_a_pod_and_nothing_is_claimed(make_tier: Any) -> None:
    spec = statefulset(make_tier(), 0, image=IMAGE)["spec"]
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["replicas"] == 1
    assert spec["serviceName"] == "llama-r0"
    assert "volumeClaimTemplates" not in spec


def test_a_lost_node_frees_its_rank_after_30_seconds(make_tier: Any) -> None:
    user = {"key": "dedicated", "operator": "Equal", "value": "kv", "effect": "NoSchedule"}
    empty = {"key": "", "operator": "Exists", "value": ""}
    tier = make_tier({"store.tolerations": [user, empty]})
    tolerations = statefulset(tier, 0, image=IMAGE)["spec"]["template"]["spec"]["tolerations"]
    assert [(each.get("key"), each.get("tolerationSeconds")) for each in tolerations[:3]] == [
        ("node.kubernetes.io/not-ready", 30),
        ("node.kubernetes.io/unreachable", 30),
        ("nvidia.com/gpu", None),
    ]
    assert tolerations[-2:] == [user, {"operator": "Exists"}]


def test_nobody_can_take_kvtiers_own_labels(make_tier: Any) -> None:
    mine = {"kvtier.dev/rank": "9", "app.kubernetes.io/name": "x", "team": "a"}
    template = statefulset(make_tier({"store.labels": mine}), 3, image=IMAGE)["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert (labels["kvtier.dev/rank"], labels["team"]) == ("3", "a")
    assert labels["app.kubernetes.io/name"] == "valkey"

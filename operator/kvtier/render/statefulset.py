"""The StatefulSet of one rank: one Valkey, nothing to keep."""

from typing import Any

from kvtier.api.types import KVCacheTier, Store, Toleration
from kvtier.generation.acl import HEALTH_USER
from kvtier.placement.domain import Domain
from kvtier.render.affinity import GPU_TAINTS, affinity, spread
from kvtier.render.meta import digest, metadata
from kvtier.render.names import (
    CA_KEY,
    CERTIFICATE_KEY,
    CONFIG_KEY,
    CONTAINER,
    PORT,
    PRIVATE_KEY_KEY,
    RESTART_HASH,
    TLS_DIRECTORY,
    TLS_VOLUME,
    acl_key,
    acl_name,
    config_name,
    labels,
    rank_name,
    selector,
)
from kvtier.render.quantities import cpu_quantity, memory_quantity
from kvtier.render.valkey_conf import chosen_at_start

VALKEY_UID = 999
"""The user ``valkey`` of the official image. The image need not know it: Valkey writes nothing."""
GRACE_SECONDS = 5
"""With nothing to save Valkey exits within a tenth of a second of SIGTERM; waiting for it longer
only keeps a hung one in the way of its successor."""
NODE_LOSS_SECONDS = 30
STARTUP_SECONDS = 600
"""A server that has not answered once by then is started again. It holds nothing yet."""
CONFIG_DIRECTORY = "/etc/valkey"
ACL_DIRECTORY = "/etc/valkey/acl"


def statefulset(
    tier: KVCacheTier, rank: int, *, image: str, domain: Domain | None = None
) -> dict[str, Any]:
    """One replica, replaced only when its pod is deleted: kvtier decides when, for all ranks.

    ``domain`` is where the next pod belongs. It restarts nothing, and neither do the fields of
    ``placement``: a rank that holds KV is worth more than one in the right place.
    """
    name = rank_name(tier.metadata.name, rank)
    template = _template(tier, rank, image=image)
    pod = template["spec"]
    for field, value in (
        ("topologySpreadConstraints", spread(tier, domain)),
        ("affinity", affinity(tier, domain)),
    ):
        if value:
            pod[field] = value
    meta = metadata(tier, name, rank=rank)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": meta,
        "spec": {
            "replicas": 1,
            "serviceName": name,
            # OrderedReady waits for a pod that will never be ready before it makes a better one.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": selector(tier.metadata.name, rank)},
            "template": template,
        },
    }


def restart_inputs(store: Store, settings: dict[str, str]) -> dict[str, Any]:
    """What a user can change of a rank's pod, as plain data: the input of the restart hash.

    It has the spec's own values, not what this release renders from them: another release, or
    another default image, restarts nothing. ``settings`` are those of ``chosen_at_start``.
    """
    chosen = {
        "image": store.image,
        "version": store.version.value,
        "memory": memory_quantity(store.memory_bytes),
        "cpu": cpu_quantity(store.cpu),
        "settings": settings,
        "tolerations": [_toleration(toleration) for toleration in store.tolerations],
        "nodeSelector": dict(store.node_selector),
        "priorityClassName": store.priority_class_name,
        "imagePullSecrets": [reference.name for reference in store.image_pull_secrets],
        "labels": dict(store.labels),
        "annotations": dict(store.annotations),
        # Its name only: renewed contents are loaded by a running server.
        "tls": store.tls.secret_name if store.tls else None,
    }
    # Absent and empty are one: a field that a later release adds changes no hash until it is used.
    return {name: value for name, value in chosen.items() if value}


def _template(tier: KVCacheTier, rank: int, *, image: str) -> dict[str, Any]:
    store = tier.spec.store
    restart_hash = digest(restart_inputs(store, chosen_at_start(tier.spec)))
    return {
        "metadata": {
            "labels": {**store.labels, **labels(tier.metadata.name, rank)},
            "annotations": {**store.annotations, RESTART_HASH: restart_hash},
        },
        "spec": _pod(tier, rank, image=image),
    }


def _pod(tier: KVCacheTier, rank: int, *, image: str) -> dict[str, Any]:
    store = tier.spec.store
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": VALKEY_UID,
            "runAsGroup": VALKEY_UID,
            "fsGroup": VALKEY_UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": _tolerations(store),
        "containers": [_container(store, image=image)],
        "volumes": _volumes(tier, rank),
    }
    if store.node_selector:
        pod["nodeSelector"] = dict(store.node_selector)
    if store.priority_class_name:
        pod["priorityClassName"] = store.priority_class_name
    if store.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret.name} for secret in store.image_pull_secrets]
    return pod


def _container(store: Store, *, image: str) -> dict[str, Any]:
    resources = {"cpu": cpu_quantity(store.cpu), "memory": memory_quantity(store.memory_bytes)}
    mounts = {"config": CONFIG_DIRECTORY, "acl": ACL_DIRECTORY}
    verified, unverified = [], []
    if store.tls:
        mounts[TLS_VOLUME] = TLS_DIRECTORY
        verified = ["--tls", "--cacert", f"{TLS_DIRECTORY}/{CA_KEY}"]
        unverified = ["--tls", "--insecure"]
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["valkey-server", f"{CONFIG_DIRECTORY}/{CONFIG_KEY}"],
        "ports": [{"name": "valkey", "containerPort": PORT, "protocol": "TCP"}],
        "resources": {"requests": resources, "limits": dict(resources)},
        # Every probe starts a process on the node. The first seconds are asked about often, so that
        # a tier is Ready soon; the months that follow are not. No rank starts whose certificate
        # ca.crt does not vouch for. One that serves is judged by kvtier and by its clients: a
        # renewed ca.crt that the server has not loaded yet would take all ranks out at once.
        "startupProbe": _ping(*verified, every=1, misses=STARTUP_SECONDS),
        "readinessProbe": _ping(*unverified, every=5, misses=2),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": name, "mountPath": path, "readOnly": True} for name, path in mounts.items()
        ],
    }


def _ping(*tls: str, every: int, misses: int) -> dict[str, Any]:
    """Ask for a PONG ``every`` so many seconds; so many ``misses`` in a row count.

    A rank whose process ends is unready at once without any probe, so what misses detect is a hung
    server. A busy one answers PING within tens of milliseconds even between values of 10 MB;
    taking it out of its Service for one slow answer would refuse engines that reconnect. There is
    no liveness probe: it could only kill a server that is slow, and the cache with it.
    """
    return {
        "exec": {
            "command": [
                "valkey-cli",
                "-p",
                str(PORT),
                *tls,
                # Without it the CLI exits 0 when the server answers with an error.
                "-e",
                "--no-auth-warning",
                "--user",
                HEALTH_USER,
                # Any word: the user has no password, but without one the CLI does not log in.
                "--pass",
                "x",
                "ping",
            ]
        },
        "periodSeconds": every,
        "timeoutSeconds": 2,
        "failureThreshold": misses,
    }


def _volumes(tier: KVCacheTier, rank: int) -> list[dict[str, Any]]:
    name, key, tls = tier.metadata.name, acl_key(rank), tier.spec.store.tls
    volumes: list[dict[str, Any]] = [
        {"name": "config", "configMap": {"name": config_name(name)}},
        {
            "name": "acl",
            "secret": {
                "secretName": acl_name(name),
                # Neither the record nor other ranks' files.
                "items": [{"key": key, "path": "users.acl"}],
                "defaultMode": 0o440,
            },
        },
    ]
    if tls:
        keys = (CERTIFICATE_KEY, PRIVATE_KEY_KEY, CA_KEY)
        volumes.append(
            {
                "name": TLS_VOLUME,
                "secret": {
                    "secretName": tls.secret_name,
                    "items": [{"key": key, "path": key} for key in keys],
                    "defaultMode": 0o440,
                },
            }
        )
    return volumes


def _tolerations(store: Store) -> list[dict[str, Any]]:
    node_loss = [
        {
            "key": f"node.kubernetes.io/{taint}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": NODE_LOSS_SECONDS,
        }
        for taint in ("not-ready", "unreachable")
    ]
    gpu = [{"key": taint, "operator": "Exists"} for taint in GPU_TAINTS]
    return [*node_loss, *gpu, *(_toleration(toleration) for toleration in store.tolerations)]


def _toleration(toleration: Toleration) -> dict[str, Any]:
    fields = toleration.model_dump(by_alias=True, exclude_none=True)
    # The API server leaves empty strings out, and the live object would never equal the intent.
    return {name: value for name, value in fields.items() if value != ""}

"""The probe of a tier: the Secret that it mounts, and its Job on one node."""

import json
import math
from typing import Any, Final

from kvtier.api.types import GROUP, KVCacheTier, KVCacheTierSpec
from kvtier.breakeven.tier import assess, chunk_bytes_per_rank
from kvtier.generation.acl import PROBE_USER, probe_prefix
from kvtier.generation.record import Record
from kvtier.probe.config import CONFIG_FILE, LEAST_VALUES, ProbeConfig, document
from kvtier.render.meta import metadata, secret
from kvtier.render.names import CA_KEY, PORT, TOKEN_KEY, host, probe_name
from kvtier.render.quantities import memory_quantity
from kvtier.render.transport import transport
from kvtier.store.address import RankAddress

PROBE_LABEL: Final = f"{GROUP}/probe"
"""On the probe's pod: the name of its tier."""
CONTAINER: Final = "probe"
DIRECTORY: Final = "/etc/kvtier-probe"
NODE_ANNOTATION: Final = f"{GROUP}/probe-node"

MOST_CONNECTIONS: Final = 2
SECONDS: Final = 5.0
LEAST_BYTES: Final = 256 << 20
MOST_BYTES: Final = 8 << 30
BREAK_EVENS: Final = 2
"""The link is measured up to so many times the break-even bandwidth: what is above pays anyway."""
CPU_BYTES_PER_SECOND: Final = {False: 1.7e9, True: 0.45e9}
"""What the reader gets out of one CPU, without and with TLS: the least of what was measured on a
loaded machine (1.8 to 3.0 and 0.45 to 0.49 GB in a second of CPU; Python 3.11, values of 1 and 12.4
MB, loopback)."""
DEADLINE_SECONDS: Final = 300
"""Of the Job: the node may have to fetch the image. A probe itself takes up to a minute."""
KEPT_SECONDS: Final = 900
"""A finished Job that no controller came to look at goes by itself."""
_MIB: Final = 1 << 20
_PROCESS_BYTES: Final = 48 * _MIB
"""A rank's process was seen with 44 MiB, of which it shares what it loads with the others."""


def probe_secret(tier: KVCacheTier, record: Record, *, ca: str | None = None) -> dict[str, Any]:
    """What the probe is told, and its token. ``ca`` is what it verifies ranks by (PEM), with TLS.

    Raises ValueError for a record without a token for the probe.
    """
    if record.probe_token is None:
        raise ValueError("the record has no token for the probe")
    config = probe_config(tier, token=record.probe_token)
    told = document(config) | {"tls": tier.spec.store.tls is not None}
    files = {
        CONFIG_FILE: json.dumps(told, indent=1, sort_keys=True) + "\n",
        TOKEN_KEY: record.probe_token,
    }
    if ca is not None:
        files[CA_KEY] = ca
    return secret(tier, probe_name(tier.metadata.name), data=files)


def probe_config(tier: KVCacheTier, *, token: str) -> ProbeConfig:
    """A probe of this tier's ranks, without CA and node."""
    name, namespace = tier.metadata.name, tier.metadata.namespace
    value = chunk_bytes_per_rank(tier.spec)
    # As many values on their way as an engine has: over a long round trip that is what bounds both.
    workers = transport(tier.spec).workers
    connections = min(workers, MOST_CONNECTIONS)
    ranks = tuple(
        RankAddress(
            rank=rank,
            host=host(name, namespace=namespace, rank=rank),
            port=PORT,
            prefix=probe_prefix(rank),
        )
        for rank in range(tier.spec.pool.ranks)
    )
    return ProbeConfig(
        ranks=ranks,
        value_bytes=value,
        max_bytes=_max_bytes(tier.spec, value_bytes=value),
        seconds=SECONDS,
        username=PROBE_USER,
        password=token,
        connections=connections,
        ahead=math.ceil(workers / connections),
    )


def _max_bytes(spec: KVCacheTierSpec, *, value_bytes: int) -> int:
    """A second's worth of twice the break-even bandwidth, within bounds; but so many values that
    each connection of each rank gets a few."""
    second = BREAK_EVENS * math.ceil(assess(spec).break_even)
    few = 4 * MOST_CONNECTIONS * LEAST_VALUES * value_bytes * spec.pool.ranks
    return max(few, min(max(second, LEAST_BYTES), MOST_BYTES))


def probe_job(tier: KVCacheTier, node: str, *, image: str) -> dict[str, Any]:
    """The Job that measures all ranks from ``node``, once; kvtier's own ``image``.

    One name for all of a tier's probes: two cannot run at the same time.
    """
    name = tier.metadata.name
    found = metadata(tier, probe_name(name))
    labels = {
        "app.kubernetes.io/name": "kvtier",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": "probe",
        "app.kubernetes.io/managed-by": "kvtier",
        # Never that of the ranks' pods, by which those are listed.
        PROBE_LABEL: name,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": found | {"labels": labels, "annotations": {NODE_ANNOTATION: node}},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {"metadata": {"labels": labels}, "spec": _pod(tier, node, image=image)},
        },
    }


def _pod(tier: KVCacheTier, node: str, *, image: str) -> dict[str, Any]:
    store = tier.spec.store
    resources = _resources(tier.spec)
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 10,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchFields": [
                                {"key": "metadata.name", "operator": "In", "values": [node]}
                            ]
                        }
                    ]
                }
            }
        },
        # An engine runs there already, whatever its taints keep away: GPUs, a team's own nodes.
        "tolerations": [{"operator": "Exists"}],
        "containers": [
            {
                "name": CONTAINER,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "args": [
                    "probe-worker",
                    f"--secret-dir={DIRECTORY}",
                    f"--node={node}",
                    "--result=/dev/termination-log",
                ],
                "resources": {"requests": resources, "limits": dict(resources)},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [{"name": "probe", "mountPath": DIRECTORY, "readOnly": True}],
            }
        ],
        "volumes": [
            {
                "name": "probe",
                "secret": {"secretName": probe_name(tier.metadata.name), "defaultMode": 0o440},
            }
        ],
    }
    if store.priority_class_name:
        pod["priorityClassName"] = store.priority_class_name
    if store.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": each.name} for each in store.image_pull_secrets]
    return pod


def _resources(spec: KVCacheTierSpec) -> dict[str, str]:
    """CPU to read at twice the break-even bandwidth, at most one for each rank; with less the
    result is a lower bound. Memory for a process per rank, which holds no value."""
    rate = CPU_BYTES_PER_SECOND[spec.store.tls is not None]
    wanted = math.ceil(BREAK_EVENS * assess(spec).break_even / rate)
    ranks = spec.pool.ranks
    return {
        "cpu": str(max(1, min(wanted, ranks))),
        "memory": memory_quantity((ranks + 1) * _PROCESS_BYTES),
    }

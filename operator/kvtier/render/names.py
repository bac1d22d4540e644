"""Names and labels of everything that a tier has in the cluster."""

from kvtier.api.types import GROUP

TIER_LABEL = f"{GROUP}/tier-name"
POOL_LABEL = f"{GROUP}/tier"
"""On engines' pods, by their owner: the name of the tier that serves them."""
RANK_LABEL = f"{GROUP}/rank"
POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
RESTART_HASH = f"{GROUP}/restart-hash"
PORT = 6379
CONTAINER = "valkey"
"""A rank's server in its pod."""


def rank_name(tier: str, rank: int) -> str:
    """StatefulSet and Service of one rank."""
    return f"{tier}-r{rank}"


def config_name(tier: str) -> str:
    """ConfigMap with valkey.conf."""
    return f"{tier}-valkey"


def acl_name(tier: str) -> str:
    """Secret with the generation record and every rank's ACL file."""
    return f"{tier}-acl"


def operator_name(tier: str) -> str:
    """Secret with the token of the operator's own user."""
    return f"{tier}-operator"


def probe_name(tier: str) -> str:
    """Secret with the probe's token, and the Job that probes."""
    return f"{tier}-probe"


def limiter_name(tier: str) -> str:
    """Secret with the token that the limiters ask ranks with."""
    return f"{tier}-limiter"


def policy_name(tier: str) -> str:
    """BackendTrafficPolicy by which Envoy Gateway holds the limit in a storm."""
    return f"{tier}-admission"


def engine_secret_name(tier: str, generation: str) -> str:
    """Secret that engines mount."""
    return f"{tier}-engine-{generation}"


def acl_key(rank: int) -> str:
    """Key of one rank's ACL file in the Secret ``<tier>-acl``."""
    return f"users-r{rank}.acl"


RECORD_KEY = "record.json"
TOKEN_KEY = "token"
CONFIG_KEY = "valkey.conf"
CERTIFICATE_KEY, PRIVATE_KEY_KEY, CA_KEY = "tls.crt", "tls.key", "ca.crt"
"""Keys of a kubernetes.io/tls Secret; engines get the last one in their Secret too."""
TLS_DIRECTORY = "/etc/valkey/tls"
"""Where a rank has that Secret."""
TLS_VOLUME = "tls"


def host(tier: str, *, namespace: str, rank: int) -> str:
    """DNS name of one rank's Service.

    Without the cluster's domain, which kvtier cannot know: every pod's resolver completes it.
    """
    return f"{rank_name(tier, rank)}.{namespace}.svc"


def labels(tier: str, rank: int | None = None) -> dict[str, str]:
    """Labels of a child. Never ``kvtier.dev/tier``: that one marks the pods of the prefill pool."""
    common = {
        "app.kubernetes.io/name": "valkey",
        "app.kubernetes.io/instance": tier,
        "app.kubernetes.io/component": "kv-cache-rank",
        "app.kubernetes.io/managed-by": "kvtier",
        TIER_LABEL: tier,
    }
    return common if rank is None else common | {RANK_LABEL: str(rank)}


def selector(tier: str, rank: int) -> dict[str, str]:
    """What selects one rank's pods. A StatefulSet's selector can never change: keep it."""
    return {TIER_LABEL: tier, RANK_LABEL: str(rank)}

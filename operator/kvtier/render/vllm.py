"""What vLLM is told, by its release."""

from typing import Any, Final

from kvtier.api.types import Connector, KVCacheTierSpec, LoadFailurePolicy

MQ_TIMEOUT: Final = 30.0
POLICY_SINCE: Final = (0, 13)
"""vLLM's first release with ``kv_load_failure_policy``. Looked at: KVTransferConfig in the source
releases 0.9.0, 0.9.1, 0.10.2, 0.11.0, 0.11.2 and 0.12.0, which do not have it (a field that it does
not know ends vLLM), and in 0.13.0, 0.14.0 and 0.16.0, which do."""
RECOMPUTES_SINCE: Final = (0, 11, 2)
"""From it to the policy's first release a load that failed was always computed again: its
scheduler.py has ``_handle_invalid_blocks``, that of 0.11.0 has not."""


OLDEST_IN_PROCESS: Final = (0, 9)
"""Releases before it were not looked at. ``kvtier.api.engine`` has that of the other connector."""


def knows_policy(spec: KVCacheTierSpec) -> bool:
    """Whether this vLLM has ``kv_load_failure_policy``; one that is not named is a recent one."""
    release = spec.pool.engine.vllm
    return release is None or release >= POLICY_SINCE


def too_old(spec: KVCacheTierSpec) -> str | None:
    """Why this vLLM may be older than the configuration, None if it is not."""
    engine = spec.pool.engine
    in_process = engine.connector is Connector.LMCACHE_IN_PROCESS
    if engine.vllm is None or not in_process or engine.vllm >= OLDEST_IN_PROCESS:
        return None
    return (
        f"vLLM {engine.vllm_version} may be too old for this configuration: releases before 0.9 "
        "were not looked at."
    )


def kv_transfer_config(spec: KVCacheTierSpec, *, servers: tuple[str, ...]) -> dict[str, Any]:
    """vLLM's ``--kv-transfer-config``. With several ``servers`` each worker has that of its rank;
    in process there is none."""
    if servers:
        config: dict[str, Any] = {
            "kv_connector": "LMCacheMPConnector",
            # LMCache's own, not the older one that vLLM has.
            "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
            "kv_connector_extra_config": {
                "lmcache.mp.server_urls": ",".join(servers),
                "lmcache.mp.mq_timeout": MQ_TIMEOUT,
            },
        }
    else:
        config = {"kv_connector": "LMCacheConnectorV1"}
    config["kv_role"] = "kv_both"
    if knows_policy(spec):
        policy = {LoadFailurePolicy.RECOMPUTE: "recompute", LoadFailurePolicy.FAIL: "fail"}
        config["kv_load_failure_policy"] = policy[spec.pool.engine.load_failure_policy]
    return config


def policy_left_out(spec: KVCacheTierSpec) -> str | None:
    """What an engine without the policy does instead, None if it has it."""
    engine = spec.pool.engine
    if knows_policy(spec) or engine.vllm is None:
        return None
    then = (
        "it always computes again what it could not load"
        if engine.vllm >= RECOMPUTES_SINCE
        else "what it does when a load fails is its own"
    )
    return (
        f"vLLM {engine.vllm_version} has no kv_load_failure_policy, so that loadFailurePolicy "
        f"{engine.load_failure_policy} is not in kv-transfer-config.json: {then}."
    )

"""``spec.pool.engine``: what the engines run, and how they reach the tier."""

from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict, Field

from kvtier.api.base import Change, Model, extra, rule
from kvtier.api.scalars import MEMORY_PATTERN, Memory, VllmVersion, parse_quantity

MIN_L1_BYTES = 64 * 2**20
MAX_L1_BYTES = 16 * 2**40
MP_NEEDS_VLLM = (0, 14)
"""LMCache 0.5's multiprocess connector imports vllm/v1/attention/backend.py, which is in vLLM's
source release 0.14.0 and not in 0.13.0."""
_LIVE = extra(Change.LIVE)
_IDENTITY = extra(Change.GENERATION)


class Connector(StrEnum):
    """What stores an engine's KV in the tier, and reads it."""

    LMCACHE_MP = "LMCacheMP"
    LMCACHE_IN_PROCESS = "LMCacheInProcess"
    GENERIC = "Generic"


class Adapter(StrEnum):
    """What of LMCache talks to the ranks."""

    PLUGIN = "Plugin"
    STOCK = "Stock"


class LoadFailurePolicy(StrEnum):
    RECOMPUTE = "Recompute"
    FAIL = "Fail"


_OLD_VLLM = r"^0+\.0*([0-9]|1[0-3])(\.[0-9]+)?$"
"""What is before MP_NEEDS_VLLM."""
_ENGINE_RULES = [
    rule(
        "!has(self.vllmVersion) || self.connector != 'LMCacheMP' ||"
        f" !self.vllmVersion.matches(r'{_OLD_VLLM}')",
        "connector LMCacheMP needs vllmVersion 0.14 or newer; write another, or connector"
        " LMCacheInProcess",
    )
]


class Engine(Model):
    model_config = ConfigDict(json_schema_extra=extra(rules=_ENGINE_RULES))

    connector: Connector = Field(
        default=Connector.LMCACHE_MP,
        description="How engines reach the tier. LMCacheMP: by LMCache's multiprocess server."
        " LMCacheInProcess: by LMCache inside of vLLM. Generic: by any other client, which takes"
        " the Secret's connection.json.",
        json_schema_extra=_IDENTITY,
    )
    version: Literal["0.5"] = Field(
        default="0.5",
        description="Compatibility series of the connector: its minor version.",
        json_schema_extra=_IDENTITY,
    )
    adapter: Adapter = Field(
        default=Adapter.PLUGIN,
        description="What of LMCache talks to the ranks. Plugin: kvtier's, which the engine Secret"
        " has; a rank that is lost is a miss. Stock: LMCache's own, only for connector LMCacheMP"
        " with striping Shard or one rank; a rank that is lost stalls every lookup.",
        json_schema_extra=_LIVE,
    )
    l1_size: Memory = Field(
        default="5Gi",
        description="Host memory in which each LMCache server (LMCacheMP) or each worker of the"
        " engine (LMCacheInProcess) keeps chunks, such as 20Gi. A hit passes through it: it should"
        " hold the longest prompt.",
        json_schema_extra=extra(
            Change.LIVE,
            rules=[
                rule(
                    "type(self) == string ? (!self.matches(r'"
                    + MEMORY_PATTERN
                    + "') || (quantity(self).compareTo(quantity('64Mi')) >= 0 &&"
                    " quantity(self).compareTo(quantity('16Ti')) <= 0)) :"
                    f" (int(self) >= {MIN_L1_BYTES} && int(self) <= {MAX_L1_BYTES})",
                    "from 64Mi to 16Ti",
                )
            ],
        ),
    )
    load_failure_policy: LoadFailurePolicy = Field(
        default=LoadFailurePolicy.RECOMPUTE,
        description="What an engine does when a load fails: Recompute the tokens, or Fail the"
        " request.",
        json_schema_extra=_LIVE,
    )
    vllm_version: VllmVersion | None = Field(
        default=None,
        description='vLLM\'s release, in quotes such as "0.14.0". An old one gets no setting that'
        " it does not know; without it a recent one is assumed.",
        json_schema_extra=_LIVE,
    )

    @property
    def l1_bytes(self) -> int:
        return int(parse_quantity(self.l1_size))

    @property
    def vllm(self) -> tuple[int, ...] | None:
        """Major, minor and perhaps patch; None where it is not said."""
        if self.vllm_version is None:
            return None
        return tuple(map(int, self.vllm_version.split(".")))

"""The Secrets that are not for engines: the tokens of the operator and of the
limiters, and the record with the ACL files."""

from typing import Any

from kvtier.api.types import KVCacheTier
from kvtier.generation.acl import acl_file
from kvtier.generation.record import Record, to_json
from kvtier.render.meta import secret
from kvtier.render.names import (
    CA_KEY,
    RECORD_KEY,
    TOKEN_KEY,
    acl_key,
    acl_name,
    limiter_name,
    operator_name,
)


def operator_secret(tier: KVCacheTier, record: Record) -> dict[str, Any]:
    return secret(tier, operator_name(tier.metadata.name), data={TOKEN_KEY: record.operator_token})


def limiter_secret(
    tier: KVCacheTier, record: Record, *, ca: str | None = None
) -> dict[str, Any] | None:
    """The limiters' token, and what they verify ranks by (PEM) with TLS; None without a token."""
    if record.limiter_token is None:
        return None
    data = {TOKEN_KEY: record.limiter_token} | ({CA_KEY: ca} if ca is not None else {})
    return secret(tier, limiter_name(tier.metadata.name), data=data)


def acl_secret(tier: KVCacheTier, record: Record) -> dict[str, Any]:
    """The record, and one ACL file per rank; a rank's pod mounts only its own file."""
    files = {acl_key(rank): acl_file(record, rank=rank) for rank in range(tier.spec.pool.ranks)}
    return secret(tier, acl_name(tier.metadata.name), data={RECORD_KEY: to_json(record), **files})

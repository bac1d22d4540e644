"""Where a tier's generation record comes from: its Secret, or what is left when that is lost."""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvtier.api.types import KVCacheTier
from kvtier.cluster.protocol import Object
from kvtier.generation.acl import OPERATOR_USER
from kvtier.generation.identity import generation_id
from kvtier.generation.record import InvalidRecord, Record, from_json, new_record
from kvtier.plan.observed import RankState
from kvtier.reconcile.memory import TierMemory
from kvtier.redact import new_token
from kvtier.render.names import RECORD_KEY, TOKEN_KEY, acl_name, engine_secret_name, operator_name
from kvtier.store.protocol import Address, Connect, Credentials, StoreError


class RecordLost(Exception):
    """The record cannot be made again from what is left. One line for the condition."""


def secret_names(tier: KVCacheTier) -> list[str]:
    """The Secrets that hold a tier's record and tokens."""
    name = tier.metadata.name
    return [operator_name(name), acl_name(name), engine_secret_name(name, generation_id(tier.spec))]


async def resolve(
    tier: KVCacheTier,
    *,
    memory: TierMemory,
    states: Iterable[RankState],
    connect: Connect,
    token: Callable[[], str] = new_token,
) -> Record:
    """The record as stored; else adopted from tokens and ranks that are left; else a new one.

    Raises RecordLost when ranks run whose users nobody can name: new tokens would lock engines
    out of a cache that still serves them.
    """
    stored = _value(memory, acl_name(tier.metadata.name), RECORD_KEY)
    if stored is not None:
        try:
            return from_json(stored)
        except InvalidRecord as error:
            if memory.record is not None:
                return memory.record
            unreadable: str | None = str(error)
    else:
        unreadable = None
    if memory.record is not None:
        # The Secret was deleted under a running operator: it still knows what was in it.
        return memory.record
    running = [state for state in states if state.address]
    operator_token = _value(memory, operator_name(tier.metadata.name), TOKEN_KEY)
    generation = generation_id(tier.spec)
    engine_token = _value(memory, engine_secret_name(tier.metadata.name, generation), TOKEN_KEY)
    if not running and unreadable is None:
        return new_record(
            tier.spec,
            operator_token=operator_token or token(),
            engine_token=engine_token or token(),
        )
    if operator_token is None:
        raise RecordLost(
            f"Secrets {acl_name(tier.metadata.name)} and {operator_name(tier.metadata.name)} "
            "cannot be read while ranks run: delete the rank pods to start the tier afresh"
        )
    found = await _adopt(
        [state for state in running if state.ready],
        generation=generation,
        operator_token=operator_token,
        connect=connect,
    )
    if found is None and engine_token is None:
        raise RecordLost(
            f"the ranks serve no generation {generation} and its record is lost"
            + (f" ({unreadable})" if unreadable else "")
            + ": delete the rank pods to start the tier afresh"
        )
    return new_record(
        tier.spec, operator_token=operator_token, engine_token=found or str(engine_token)
    )


async def _adopt(
    states: Iterable[RankState], *, generation: str, operator_token: str, connect: Connect
) -> str | None:
    """The engine user (whose name is its token) that a running rank has for this generation."""
    for state in states:
        credentials = Credentials(username=OPERATOR_USER, password=operator_token)
        try:
            async with connect(Address(host=str(state.address)), credentials) as store:
                lines = await store.acl_list()
        except StoreError:
            continue
        for line in lines:
            words = line.split()
            if f"~kvt-{generation}-r{state.rank}@*" in words:
                return words[1]
    return None


def _value(memory: TierMemory, secret: str, key: str) -> str | None:
    """One decoded value of a Secret as last read, None if it is not there or not text."""
    obj: Object | Mapping[str, Any] = memory.children.get(("Secret", secret), {})
    encoded = (obj.get("data") or {}).get(key)
    if encoded is None:
        return None
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""

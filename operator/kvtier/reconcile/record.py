"""Where a tier's generation record comes from: its Secret, or what is left when that is lost."""

import base64
import binascii
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from kvtier.api.types import KVCacheTier
from kvtier.generation.identity import generation_id
from kvtier.generation.record import (
    ID_PATTERN,
    TOKEN_PATTERN,
    InvalidRecord,
    LaterRecord,
    Record,
    from_json,
    new_record,
    to_json,
)
from kvtier.plan.observed import RankState, is_owned_by
from kvtier.plan.tls import published_ca, trusted_ca
from kvtier.reconcile.adopt import adopted, engine_users
from kvtier.reconcile.memory import TierMemory
from kvtier.redact import new_token
from kvtier.render.names import (
    RECORD_KEY,
    TOKEN_KEY,
    acl_name,
    engine_secret_name,
    limiter_name,
    operator_name,
    probe_name,
)
from kvtier.store.protocol import Connect


class RecordLost(Exception):
    """The record cannot be made again from what is left. One line for the condition."""


def secret_names(tier: KVCacheTier) -> list[str]:
    """The Secrets that hold a tier's record and tokens.

    Engines' among them: of the generation that the spec names, and of those that the status knows.
    """
    name = tier.metadata.name
    known = [each.get("id", "") for each in tier.status.get("generations", ())]
    wanted = dict.fromkeys([generation_id(tier.spec), *filter(ID_PATTERN.fullmatch, known)])
    engines = [engine_secret_name(name, each) for each in wanted]
    return [operator_name(name), acl_name(name), probe_name(name), limiter_name(name), *engines]


def unread_names(tier: KVCacheTier, memory: TierMemory) -> list[str]:
    """The engine Secrets of the record's other generations: a status can be lost."""
    text = _value(memory, tier, acl_name(tier.metadata.name), RECORD_KEY)
    with suppress(InvalidRecord):
        record = from_json(text or "")
        names = [engine_secret_name(tier.metadata.name, each.id) for each in record.generations]
        return [name for name in names if name not in secret_names(tier)]
    return []


def is_recorded(memory: TierMemory, tier: KVCacheTier, record: Record) -> bool:
    """Whether exactly this record is in its Secret, as last read or written."""
    return _value(memory, tier, acl_name(tier.metadata.name), RECORD_KEY) == to_json(record)


async def resolve(
    tier: KVCacheTier,
    *,
    memory: TierMemory,
    states: Iterable[RankState],
    connect: Connect,
    token: Callable[[], str] = new_token,
) -> Record:
    """The record as stored; else adopted from tokens and ranks that are left; else a new one.

    One of a release that had no probe or no limiter gets a token for it, which running ranks load
    as they do any user. Raises RecordLost when ranks run whose users nobody can name: new tokens
    would lock engines out of a cache that still serves them.
    """
    found = await _resolve(tier, memory=memory, states=states, connect=connect, token=token)
    name = tier.metadata.name

    def known(secret: str) -> str:
        held = _value(memory, tier, secret, TOKEN_KEY)
        return held if held is not None and TOKEN_PATTERN.fullmatch(held) else token()

    return replace(
        found,
        probe_token=found.probe_token or known(probe_name(name)),
        limiter_token=found.limiter_token or known(limiter_name(name)),
    )


async def _resolve(
    tier: KVCacheTier,
    *,
    memory: TierMemory,
    states: Iterable[RankState],
    connect: Connect,
    token: Callable[[], str],
) -> Record:
    name = tier.metadata.name
    stored = _value(memory, tier, acl_name(name), RECORD_KEY)
    unreadable = ""
    if stored is not None:
        try:
            return from_json(stored)
        except LaterRecord as error:
            raise RecordLost(
                f"Secret {acl_name(name)}: {error}: run the release that wrote it"
            ) from None
        except InvalidRecord as error:
            unreadable = f" ({error})"
    if memory.record is not None:
        # The Secret was lost under a running operator: it still knows what was in it.
        return memory.record
    running = [state for state in states if state.address]
    operator_token = _value(memory, tier, operator_name(name), TOKEN_KEY)
    generation = generation_id(tier.spec)
    engine_token = _value(memory, tier, engine_secret_name(name, generation), TOKEN_KEY)
    if not running:
        return new_record(
            tier.spec,
            operator_token=operator_token or token(),
            engine_token=engine_token or token(),
        )
    if operator_token is None:
        raise RecordLost(
            f"Secrets {acl_name(name)} and {operator_name(name)} cannot be read{unreadable} while "
            "ranks run: restore them, or accept an empty cache and make the tier anew"
        )
    ca = trusted_ca(memory.tls, published_ca(tier, memory.children))
    users = await engine_users(
        [state for state in running if state.ready],
        tier=tier,
        ca=ca,
        operator_token=operator_token,
        connect=connect,
    )
    found = adopted(
        tier,
        users,
        operator_token=operator_token,
        published=lambda each: _value(memory, tier, engine_secret_name(name, each), TOKEN_KEY),
    )
    if found is None:
        raise RecordLost(
            f"the ranks serve no generation {generation} and its record is lost{unreadable}: "
            "restore it, or accept an empty cache and make the tier anew"
        )
    return found


def _value(memory: TierMemory, tier: KVCacheTier, secret: str, key: str) -> str | None:
    """One decoded value of a Secret of this tier as last read; None if there is none.

    What somebody else put under that name, or a deleted tier left there, says nothing about ours.
    """
    obj = memory.children.get(("Secret", secret))
    if obj is None or not is_owned_by(obj, tier.metadata.uid):
        return None
    encoded = (obj.get("data") or {}).get(key)
    if encoded is None:
        return None
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""

"""Making a lost record again from what the ranks, the engines' Secrets and the status still know.

Nothing is deleted for it, and no fence is lifted: what the status calls fenced stays so, whatever
a rank that missed it still allows.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvtier.api.types import KVCacheTier
from kvtier.generation.acl import OPERATOR_USER
from kvtier.generation.entry import (
    Cause,
    GenerationEntry,
    GenerationState,
    RetiredToken,
    Retirement,
)
from kvtier.generation.identity import IDENTITY_VERSION, generation_id, identity
from kvtier.generation.record import Record
from kvtier.plan.observed import RankState
from kvtier.plan.tls import rank_address
from kvtier.store.protocol import Connect, Credentials, StoreError

_KEYS = re.compile(r"~kvt-([0-9a-f]{12})-r(\d+)@\*")
_WITHOUT_ACCESS = (GenerationState.FENCED, GenerationState.PURGED, GenerationState.CONTAMINATED)

Published = Callable[[str], str | None]
"""The token in the Secret of a generation, None if there is none."""


async def engine_users(
    states: Iterable[RankState],
    *,
    tier: KVCacheTier,
    ca: str | None,
    operator_token: str,
    connect: Connect,
) -> dict[str, list[str]]:
    """The engine users (named as their tokens) that running ranks have, by generation."""
    found: dict[str, list[str]] = {}
    for state in states:
        credentials = Credentials(username=OPERATOR_USER, password=operator_token)
        try:
            async with connect(rank_address(tier, state, ca=ca), credentials) as store:
                lines = await store.acl_list()
        except StoreError:
            continue
        for line in lines:
            _, name, *rules = line.split()
            for match in filter(None, map(_KEYS.fullmatch, rules)):
                tokens = found.setdefault(match[1], [])
                if int(match[2]) == state.rank and name not in tokens:
                    tokens.append(name)
    return {generation: tokens for generation, tokens in found.items() if tokens}


def adopted(
    tier: KVCacheTier, users: Mapping[str, list[str]], *, operator_token: str, published: Published
) -> Record | None:
    """The record by what is left, None if no generation is.

    Identities but that of the spec are lost: such a generation is compared with no pod, and goes
    when it has drained.
    """
    wanted = generation_id(tier.spec)
    told = {each["id"]: each for each in tier.status.get("generations", ()) if "id" in each}
    entries = []
    for generation in dict.fromkeys([*told, *users, wanted]):
        tokens = list(users.get(generation, ()))
        current = published(generation)
        if current is not None and current in tokens:
            tokens.remove(current)
        token = current or (tokens.pop(0) if tokens else None)
        if token is None:
            continue
        state, cause = _state(told.get(generation, {}), is_wanted=generation == wanted)
        entries.append(
            GenerationEntry(
                id=generation,
                state=state,
                token=token,
                identity=identity(tier.spec) if generation == wanted else None,
                cause=cause,
                since=told.get(generation, {}).get("since"),
                retired=tuple(RetiredToken(each, Retirement.VALID) for each in tokens),
            )
        )
    if not entries:
        return None
    live = [entry.id for entry in entries if entry.state is GenerationState.LIVE]
    known = {entry.id for entry in entries}
    return Record(
        identity_version=IDENTITY_VERSION,
        operator_token=operator_token,
        generations=tuple(entries),
        current_id=(live or [wanted if wanted in known else entries[-1].id])[0],
        credential_epoch=tier.spec.rollout.credential_epoch,
    )


def _state(told: Mapping[str, Any], *, is_wanted: bool) -> tuple[GenerationState, Cause | None]:
    """A generation's state by the status, which may be old: a fence holds, anything else follows
    from the spec."""
    state, cause = told.get("state"), told.get("cause")
    if state in _WITHOUT_ACCESS:
        # Why is not known any more: of poison, then, which asks for most before it is read again.
        known = Cause(cause) if cause in set(Cause) else Cause.CONTAMINATED
        return GenerationState(str(state)), known
    if is_wanted:
        return GenerationState.LIVE, None
    pending = state == GenerationState.PENDING
    return (GenerationState.PENDING if pending else GenerationState.DRAINING), None

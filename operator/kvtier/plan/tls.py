"""Pure: whom engines and kvtier trust, which ranks load their certificate again, and what waits."""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kvtier.api.types import KVCacheTier
from kvtier.generation.identity import generation_id
from kvtier.plan.children import ChildPlan
from kvtier.plan.observed import (
    ChildKey,
    Object,
    Observed,
    RankState,
    ReloadCertificate,
    StoreAction,
    StoreFacts,
    TlsFacts,
    child_key,
    is_owned_by,
)
from kvtier.render.names import CA_KEY, engine_secret_name, host
from kvtier.store.protocol import Address, TlsName

TLS_RETRY = 30.0
"""Seconds until a Secret that cannot be used is read again: its repair sends kvtier no event."""
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def hosts(tier: KVCacheTier) -> list[str]:
    """The DNS names by which the ranks are reached: the certificate must be for all of them."""
    name, namespace = tier.metadata.name, tier.metadata.namespace
    return [host(name, namespace=namespace, rank=rank) for rank in range(tier.spec.pool.ranks)]


def rank_address(tier: KVCacheTier, state: RankState, *, ca: str | None) -> Address:
    """Where a running rank listens. Its pod, not the spec, says whether that is by TLS."""
    address = Address(host=str(state.address))
    if not state.tls:
        return address
    name = host(tier.metadata.name, namespace=tier.metadata.namespace, rank=state.rank)
    return replace(address, tls=TlsName(name=name, ca=ca or ""))


def published_ca(tier: KVCacheTier, children: Mapping[ChildKey, Object]) -> str | None:
    """The CA that engines have been given: what is left when the TLS Secret cannot be used."""
    name = engine_secret_name(tier.metadata.name, generation_id(tier.spec))
    secret = children.get(("Secret", name))
    if secret is None or not is_owned_by(secret, tier.metadata.uid):
        return None
    try:
        return base64.b64decode((secret.get("data") or {})[CA_KEY], validate=True).decode()
    except (KeyError, binascii.Error, UnicodeDecodeError):
        return None


def usable(facts: TlsFacts | None) -> TlsFacts | None:
    """The facts, if ranks can serve with what they say."""
    return facts if facts is not None and facts.problem is None else None


def trusted_ca(facts: TlsFacts | None, published: str | None) -> str | None:
    """Whom kvtier's own sessions trust: the Secret's CA, and the one before it, by which a rank
    that has not loaded its renewed certificate yet is known."""
    found = usable(facts)
    return _bundle([found.ca if found else None, published])


def engines_trust(facts: TlsFacts | None, published: str | None) -> bool:
    """Whether engines verify the Secret's certificate by what they have been given: a rank that
    loads another one is lost to them."""
    found = usable(facts)
    return found is not None and set(_blocks(found.ca)) <= set(_blocks(published))


def engine_ca(
    observed: Observed, ranks: Iterable[RankState], *, published: str | None
) -> str | None:
    """What the engine Secret has as ``ca.crt``; None: no such key.

    While a rank that runs may still serve a certificate of the CA before, engines get both.
    """
    if observed.tier.spec.store.tls is None:
        return None
    facts = usable(observed.tls)
    if facts is None:
        return published
    if all(_is_loaded(state, observed.stores, facts) for state in ranks if state.address):
        return _bundle([facts.ca])
    return trusted_ca(facts, published)


def _is_loaded(state: RankState, stores: Mapping[int, StoreFacts], facts: TlsFacts) -> bool:
    if not state.tls:
        return True
    found = stores.get(state.rank)
    if found is None:
        # Ready ranks are asked until they are proven to be as wanted, others not at all.
        return state.ready
    return found.certificate is not None and found.certificate.fingerprint == facts.fingerprint


def _bundle(texts: Iterable[str | None]) -> str | None:
    """The certificates of all texts in PEM, each once, in a stable order."""
    blocks = dict.fromkeys(block for text in texts for block in _blocks(text))
    return "".join(f"{block}\n" for block in blocks) or None


def _blocks(text: str | None) -> list[str]:
    """The certificates in PEM, without what stands between them."""
    return _PEM.findall(text or "")


def reload(observed: Observed, rank: int, facts: StoreFacts) -> tuple[ReloadCertificate, ...]:
    """What makes a rank serve the Secret's certificate, if it serves another one."""
    wanted = usable(observed.tls)
    if wanted is None or wanted.fingerprint is None or facts.certificate is None:
        return ()
    if facts.certificate.fingerprint == wanted.fingerprint:
        return ()
    return (ReloadCertificate(rank=rank, fingerprint=wanted.fingerprint),)


def while_paused(
    actions: Sequence[StoreAction], *, facts: TlsFacts | None, published: str | None
) -> tuple[StoreAction, ...]:
    """A renewed certificate is loaded all the same: without it running ranks cease to serve.

    One of a CA that engines do not have waits: their Secret is not changed while paused.
    """
    if not engines_trust(facts, published):
        return ()
    return tuple(action for action in actions if isinstance(action, ReloadCertificate))


def waiting(observed: Observed) -> tuple[str, str] | None:
    """(reason, message) of why nothing that mounts the TLS Secret may be made or restarted."""
    if observed.tier.spec.store.tls is None or observed.tls is None:
        return None
    return observed.tls.problem


def held_back(children: ChildPlan, *, tier: KVCacheTier, published: str | None) -> ChildPlan:
    """What can be done without the certificate.

    A rank's settings name it, so they wait with the StatefulSets; and engines that were given no
    CA yet would trust whatever the system does.
    """

    engine = ("Secret", engine_secret_name(tier.metadata.name, generation_id(tier.spec)))

    def waits(intent: Object) -> bool:
        key = child_key(intent)
        return key[0] in ("StatefulSet", "ConfigMap") or (key == engine and published is None)

    return replace(
        children,
        creates=tuple(intent for intent in children.creates if not waits(intent)),
        applies=tuple(apply for apply in children.applies if not waits(apply.intent)),
    )

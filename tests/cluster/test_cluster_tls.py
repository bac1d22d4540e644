"""Tiers that serve TLS, on both series: what engines get, who is refused, renewal, bad Secrets."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from certificates import Ca, Pair, secret
from kvtier.api import reasons
from kvtier.store.client import connector
from kvtier.store.protocol import (
    Address,
    Credentials,
    StoreUnreachable,
    StoreUntrusted,
    TlsName,
)
from livecluster import loadtest
from livecluster.fixtures import NewTier
from livecluster.tier import Tier
from livecluster.waiting import eventually

LOAD = ("--engines", "1", "--rate", "4", "--prompt-tokens", "2048", "--prefixes", "2")
DAY = timedelta(days=1)
_pokes = count()


@dataclass(frozen=True, slots=True)
class TlsTier:
    """A tier, and the Secret that it serves TLS with."""

    tier: Tier

    @property
    def secret(self) -> str:
        return f"{self.tier.name}-tls"

    def wildcard(self) -> str:
        return f"*.{self.tier.namespace}.svc"

    def put(self, pair: Pair, ca: str) -> None:
        """Make the Secret, or renew it."""
        self.tier.cluster.apply(secret(self.secret, pair, ca=ca, namespace=self.tier.namespace))

    def apply(self, **store: Any) -> None:
        self.tier.apply({"store": {"tls": {"secretName": self.secret}, **store}})

    def deliver(self) -> None:
        """A changed pod makes its kubelet look at what it mounts; else that takes a minute."""
        for pod in self.tier.pods().values():
            name = pod["metadata"]["name"]
            self.tier.kubectl("annotate", "pod", name, f"poke={next(_pokes)}", "--overwrite")

    def served(self, rank: int, *, ca: str | None, name: str = "") -> str:
        """The fingerprint that an engine finds which trusts ``ca``; None: one without TLS."""
        engine = self.tier.engine()
        entry = engine.connection["ranks"][rank]
        tls = TlsName(name or entry["host"], ca) if ca else None
        address = Address(engine.resolve(entry["host"]), entry["port"], tls)
        return asyncio.run(_fingerprint(address, Credentials(engine.token, engine.token)))


async def _fingerprint(address: Address, credentials: Credentials) -> str:
    async with connector(connect_seconds=10, reply_seconds=10)(address, credentials) as store:
        await store.ping()
        return store.peer.fingerprint if store.peer else ""


@pytest.fixture(scope="module")
def ca() -> Ca:
    return Ca()


@pytest.fixture(scope="module")
def other_ca() -> Ca:
    return Ca("other")


@pytest.fixture(scope="module")
def both(module_tiers: NewTier, ca: Ca) -> Mapping[str, TlsTier]:
    """One tier of each series, Ready."""
    found = {
        version: TlsTier(module_tiers(f"series-{version.replace('.', '-')}"))
        for version in ("8.1", "9.1")
    }
    for version, each in found.items():
        each.put(ca.issue(each.wildcard()), ca.pem)
        each.apply(version=version, cpu="300m")
    for each in found.values():
        each.tier.wait_ready()
    return found


def test_engines_of_both_series_read_what_they_stored(both: Mapping[str, TlsTier], ca: Ca) -> None:
    for each in both.values():
        files = each.tier.secret(each.tier.body()["status"]["engineSecret"])
        assert files["ca.crt"] == ca.pem
        each.tier.engine()
    runs = [
        loadtest.start(each.tier, *LOAD, seconds=90, name=f"{each.tier.name}-load")
        for each in both.values()
    ]
    for run in runs:
        run.wait_hits()
        run.stop()
        report = run.report()
        assert run.exit_code() == 0, report
        assert report["wrong"] == {"corrupt": 0, "foreign": 0, "stale": 0}
        assert report["tokens"]["hit"] > 0
        assert report["bytes"]["read"] > 0


def test_nobody_gets_in_without_tls_by_another_ca_or_under_another_name(
    both: Mapping[str, TlsTier], ca: Ca, other_ca: Ca
) -> None:
    for each in both.values():
        for rank in range(2):
            assert each.served(rank, ca=ca.pem)
            with pytest.raises(StoreUnreachable):
                each.served(rank, ca=None)
            with pytest.raises(StoreUntrusted):
                each.served(rank, ca=other_ca.pem)
            with pytest.raises(StoreUntrusted):
                each.served(rank, ca=ca.pem, name="elsewhere")


def test_a_renewed_certificate_is_served_without_a_restart(
    both: Mapping[str, TlsTier], ca: Ca
) -> None:
    containers = {version: each.tier.containers() for version, each in both.items()}
    old = {
        (version, rank): each.served(rank, ca=ca.pem)
        for version, each in both.items()
        for rank in range(2)
    }
    for each in both.values():
        each.put(ca.issue(each.wildcard()), ca.pem)
        each.deliver()
    for (version, rank), fingerprint in old.items():
        eventually(
            lambda version=version, rank=rank, old=fingerprint: (
                both[version].served(rank, ca=ca.pem) != old
            ),
            seconds=100,
            what=f"rank {rank} of {version} serves the renewed certificate",
            detail=lambda version=version: both[version].tier.condition("StoreReady"),
        )
    for version, each in both.items():
        each.tier.wait_ready()
        assert each.tier.containers() == containers[version]


def test_a_bad_secret_has_its_reason_and_nothing_starts_until_it_is_mended(
    new_tier: NewTier, ca: Ca
) -> None:
    """One of each kind that a cluster adds something to; all are in test_certificate.py."""
    broken = TlsTier(new_tier("broken"))
    good = ca.issue(broken.wildcard())
    expired = ca.issue(broken.wildcard(), begin=-9 * DAY, end=-DAY)
    broken.apply()
    broken.tier.wait("StoreReady", "False", reason=reasons.TLS_SECRET_NOT_FOUND)
    for reason, pair in (
        (reasons.TLS_KEY_MISMATCH, Pair(good.certificate, expired.key)),
        (reasons.TLS_CERTIFICATE_EXPIRED, expired),
    ):
        broken.put(pair, ca.pem)
        message = broken.tier.wait("StoreReady", "False", reason=reason)["message"]
        assert broken.secret in message
        assert broken.tier.pods() == {}
    broken.put(good, ca.pem)
    broken.tier.wait_ready()
    assert broken.served(0, ca=ca.pem)

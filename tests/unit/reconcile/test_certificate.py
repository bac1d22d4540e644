"""Every way in which a TLS Secret can be wrong is told apart, and how to mend it."""

import base64
import ssl
import subprocess
import time
from collections.abc import Mapping
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest

from certificates import Ca, Pair, secret
from kvtier.api import reasons
from kvtier.plan.observed import TlsFacts
from kvtier.reconcile.certificate import examine
from kvtier.render.names import host

HOSTS = [host("demo", namespace="serving", rank=rank) for rank in range(4)]
DAY = timedelta(days=1)
CERTIFICATE = "-----BEGIN CERTIFICATE-----"


@pytest.fixture(scope="module")
def ca() -> Ca:
    return Ca()


@pytest.fixture(scope="module")
def good(ca: Ca) -> Pair:
    return ca.issue(*HOSTS)


def judged(obj: Mapping[str, Any] | None, *, hosts: list[str] | None = None) -> TlsFacts:
    return examine(dict(obj) if obj else None, name="ranks-tls", hosts=hosts or HOSTS)


def of(pair: Pair, ca: str) -> dict[str, Any]:
    return secret("ranks-tls", pair, ca=ca)


def problem(obj: Mapping[str, Any] | None, reason: str, *texts: str) -> None:
    found = judged(obj).problem
    assert found is not None
    assert found[0] == reason, found
    for text in ("ranks-tls", *texts):
        assert text in found[1]


def test_a_certificate_for_every_rank_is_usable(ca: Ca, good: Pair) -> None:
    facts = judged(of(good, ca.pem))
    assert facts.problem is None
    assert facts.ca == ca.pem
    assert facts.fingerprint is not None
    assert len(facts.fingerprint) == 64


def test_when_it_ends_is_read_to_the_second(ca: Ca, good: Pair) -> None:
    facts = judged(of(good, ca.pem))
    assert facts.not_after == pytest.approx(time.time() + 5 * 86400, abs=120)
    der = ssl.PEM_cert_to_DER_cert(good.certificate)
    assert facts.fingerprint == sha256(der).hexdigest()


def test_a_wildcard_of_the_namespace_is_for_every_rank_of_every_tier(ca: Ca) -> None:
    assert judged(of(ca.issue("*.serving.svc"), ca.pem)).problem is None
    problem(of(ca.issue("*.other.svc"), ca.pem), reasons.TLS_NAMES_MISSING)


def test_an_rsa_key_is_as_good(ca: Ca) -> None:
    assert judged(of(ca.issue(*HOSTS, key="2048"), ca.pem)).problem is None


@pytest.mark.parametrize("rank", range(4))
def test_one_rank_that_is_not_named_is_told(rank: int, ca: Ca) -> None:
    named = [name for name in HOSTS if name != HOSTS[rank]]
    found = judged(of(ca.issue(*named), ca.pem)).problem
    assert found is not None
    assert found[0] == reasons.TLS_NAMES_MISSING
    assert HOSTS[rank] in found[1]
    assert "*.serving.svc" in found[1]
    assert not any(name in found[1] for name in named)


def test_of_many_names_that_are_missing_a_few_are_listed(ca: Ca) -> None:
    many = [host("demo", namespace="serving", rank=rank) for rank in range(64)]
    found = judged(of(ca.issue("demo-r0.serving.svc"), ca.pem), hosts=many).problem
    assert found is not None
    assert "and 60 more" in found[1]
    assert len(found[1]) < 300


def test_names_of_the_subject_do_not_count(ca: Ca) -> None:
    problem(of(ca.issue(), ca.pem), reasons.TLS_NAMES_MISSING, "demo-r0.serving.svc")


def test_a_secret_that_does_not_exist() -> None:
    problem(None, reasons.TLS_SECRET_NOT_FOUND, "does not exist", "tls.crt, tls.key, ca.crt")


@pytest.mark.parametrize("key", ["tls.crt", "tls.key", "ca.crt"])
@pytest.mark.parametrize("empty", [True, False])
def test_a_key_that_is_not_there(key: str, empty: bool, ca: Ca, good: Pair) -> None:
    obj = of(good, ca.pem)
    del obj["data"][key]
    if empty:
        obj["data"][key] = ""
    problem(obj, reasons.TLS_SECRET_INVALID, f"has no {key}")


@pytest.mark.parametrize("key", ["tls.crt", "tls.key", "ca.crt"])
@pytest.mark.parametrize(
    "text", [b"junk", "ü".encode(), CERTIFICATE.encode(), b"\xff\xfe", b"-----BEGIN PRIVATE KEY"]
)
def test_a_file_that_is_not_pem(key: str, text: bytes, ca: Ca, good: Pair) -> None:
    obj = of(good, ca.pem)
    obj["data"][key] = base64.b64encode(text).decode()
    problem(obj, reasons.TLS_SECRET_INVALID, key, "in PEM")


def test_a_key_behind_a_password_is_refused_and_nobody_is_asked_for_it(ca: Ca, good: Pair) -> None:
    encrypted = subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-passout", "pass:x"],
        input=good.key,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "ENCRYPTED" in encrypted
    problem(of(Pair(good.certificate, encrypted), ca.pem), reasons.TLS_SECRET_INVALID, "password")


@pytest.mark.parametrize("key", ["ec", "2048"])
def test_a_key_of_another_certificate(key: str, ca: Ca, good: Pair) -> None:
    other = ca.issue(*HOSTS, key=key)
    pair = Pair(good.certificate, other.key)
    problem(of(pair, ca.pem), reasons.TLS_KEY_MISMATCH, "does not belong", "tls.key")


def test_a_certificate_that_another_ca_signed(good: Pair) -> None:
    problem(of(good, Ca("other").pem), reasons.TLS_CERTIFICATE_UNTRUSTED, "ca.crt")


def test_one_of_two_cas_is_enough(ca: Ca, good: Pair) -> None:
    assert judged(of(good, Ca("other").pem + ca.pem)).problem is None


def test_a_certificate_that_is_only_for_clients(ca: Ca) -> None:
    pair = ca.issue(*HOSTS, usage="clientAuth")
    problem(of(pair, ca.pem), reasons.TLS_CERTIFICATE_UNTRUSTED, "purpose")


def test_a_name_in_the_subject_does_not_count(ca: Ca) -> None:
    # With a SAN of another kind OpenSSL would look at it.
    for names in ((), ("elsewhere",)):
        pair = ca.issue(*names, common_name="*.serving.svc")
        problem(of(pair, ca.pem), reasons.TLS_NAMES_MISSING, HOSTS[0])


def test_a_certificate_of_a_ca_is_refused_as_engines_do(ca: Ca) -> None:
    text = ("CA:TRUE", "tls.crt", "ca.crt")
    pair = ca.issue(*HOSTS, ca=True)
    problem(of(pair, ca.pem), reasons.TLS_CERTIFICATE_UNTRUSTED, *text)
    problem(of(pair, pair.certificate), reasons.TLS_CERTIFICATE_UNTRUSTED, *text)


def test_a_ca_in_blocks_that_engines_skip_is_refused(ca: Ca, good: Pair) -> None:
    older = ca.pem.replace(" CERTIFICATE-", " X509 CERTIFICATE-")
    problem(of(good, older), reasons.TLS_SECRET_INVALID, "ca.crt")


def test_a_key_too_weak_for_clients(ca: Ca) -> None:
    pair = ca.issue(*HOSTS, key="1024")
    problem(of(pair, ca.pem), reasons.TLS_CERTIFICATE_UNTRUSTED, "key too small")


def test_an_expired_certificate_is_told_with_its_date(ca: Ca) -> None:
    obj = of(ca.issue(*HOSTS, begin=-9 * DAY, end=-DAY), ca.pem)
    problem(obj, reasons.TLS_CERTIFICATE_EXPIRED, "expired on 20", "renew")
    assert judged(obj).not_after is not None


def test_a_certificate_of_tomorrow_is_told_with_its_date(ca: Ca) -> None:
    obj = of(ca.issue(*HOSTS, begin=DAY, end=5 * DAY), ca.pem)
    problem(obj, reasons.TLS_CERTIFICATE_EXPIRED, "is not valid before 20")


def test_what_is_wrong_with_a_certificate_is_told_before_its_names(ca: Ca) -> None:
    obj = of(ca.issue("elsewhere", begin=-9 * DAY, end=-DAY), ca.pem)
    problem(obj, reasons.TLS_CERTIFICATE_EXPIRED)


def test_no_message_shows_a_key(ca: Ca, good: Pair) -> None:
    line = good.key.splitlines()[2]
    for pair in (good, Pair(good.certificate, ca.issue("x").key)):
        assert line not in repr(judged(of(pair, ca.pem)))

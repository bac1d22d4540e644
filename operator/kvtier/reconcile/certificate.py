"""Whether the certificate in a tier's TLS Secret can serve it, before anything mounts it.

A rank's side and its client's side do TLS handshakes in memory, and what OpenSSL refuses there it
would refuse in earnest. What engines refuse beyond that is looked for in the certificate's bytes.
"""

import base64
import binascii
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from kvtier.api import reasons
from kvtier.cluster.protocol import Object
from kvtier.placement.findings import named
from kvtier.plan.observed import TlsFacts
from kvtier.render.names import CA_KEY, CERTIFICATE_KEY, PRIVATE_KEY_KEY
from kvtier.store.tls import (
    EXPIRED,
    NAME_MISMATCH,
    NO_CHECK_TIME,
    NOT_YET_VALID,
    client_context,
    handshake,
    peer,
    server_context,
)

_CA_TRUE = re.compile(
    rb"\x06\x03\x55\x1d\x13" rb"(?:\x01\x01\xff)?" rb"\x04.\x30.\x01\x01\xff", re.DOTALL
)
"""basicConstraints (2.5.29.19), perhaps critical, with cA TRUE, as DER has to write it (RFC 5280,
4.2.1.9). The ssl module shows CAs only where keyUsage says so too."""
CERTIFICATE_BEGINS = b"-----BEGIN CERTIFICATE-----"
KEYS = (CERTIFICATE_KEY, PRIVATE_KEY_KEY, CA_KEY)


class _Unusable(Exception):
    """A reason, and one sentence that says what is wrong and what mends it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.problem = (reason, message)


def examine(secret: Object | None, *, name: str, hosts: Sequence[str]) -> TlsFacts:
    """What the Secret ``name`` holds, and why ranks cannot serve ``hosts`` with it, if they cannot.

    ``hosts`` are the DNS names by which engines and kvtier reach the ranks. Takes about 3 ms, and
    as much again for each host.
    """
    try:
        data = _data(secret, name)
        ca = data[CA_KEY].decode()
        server = _server(data, name)
        leaf = _leaf(server, data[CERTIFICATE_KEY].decode(), name)
    except _Unusable as error:
        return TlsFacts(problem=error.problem)
    facts = peer(leaf)
    problem = None
    try:
        _check_kind(leaf, name)
        _check_trust(server, ca=ca, leaf=leaf, name=name)
        _check_names(server, ca=ca, hosts=hosts, name=name)
    except _Unusable as error:
        problem = error.problem
    return TlsFacts(
        ca=ca, fingerprint=facts.fingerprint, not_after=facts.not_after, problem=problem
    )


def _data(secret: Object | None, name: str) -> dict[str, bytes]:
    """The three files. Certificates among them are PEM."""
    if secret is None:
        raise _Unusable(
            reasons.TLS_SECRET_NOT_FOUND,
            f"Secret {name} does not exist: create it in the tier's namespace, with "
            f"{', '.join(KEYS)}.",
        )
    encoded: Mapping[str, str] = secret.get("data") or {}
    if missing := [key for key in KEYS if not encoded.get(key)]:
        hint = ": the CA that signed the certificate" if missing == [CA_KEY] else ""
        raise _Unusable(
            reasons.TLS_SECRET_INVALID, f"Secret {name} has no {', '.join(missing)}{hint}."
        )
    try:
        data = {key: base64.b64decode(encoded[key], validate=True) for key in KEYS}
    except binascii.Error:
        raise _Unusable(reasons.TLS_SECRET_INVALID, f"Secret {name} is not base64.") from None
    for key in (CERTIFICATE_KEY, CA_KEY):
        if not _are_certificates(data[key]):
            raise _Unusable(
                reasons.TLS_SECRET_INVALID, f"{key} of Secret {name} is no certificate in PEM."
            )
    return data


def _are_certificates(text: bytes) -> bool:
    try:
        client_context(text.decode("ascii"))
    except (ssl.SSLError, ValueError):
        return False
    # OpenSSL also takes blocks of an older name, which engines skip.
    return CERTIFICATE_BEGINS in text


def _server(data: Mapping[str, bytes], name: str) -> ssl.SSLContext:
    try:
        return server_context(data[CERTIFICATE_KEY], data[PRIVATE_KEY_KEY])
    except ssl.SSLError as error:
        why = error.reason or ""
    # The second: a key of another kind than the certificate's.
    if "MISMATCH" in why or why == "NO_CERTIFICATE_ASSIGNED":
        raise _Unusable(
            reasons.TLS_KEY_MISMATCH,
            f"{PRIVATE_KEY_KEY} of Secret {name} does not belong to the certificate in "
            f"{CERTIFICATE_KEY}: put in the two that were made together.",
        )
    if "TOO_SMALL" in why or "TOO_WEAK" in why:
        raise _untrusted(name, why.replace("_", " ").lower())
    raise _Unusable(
        reasons.TLS_SECRET_INVALID,
        f"{PRIVATE_KEY_KEY} of Secret {name} is no private key in PEM without a password.",
    )


def _leaf(server: ssl.SSLContext, certificate: str, name: str) -> ssl.SSLObject:
    """A handshake that trusts this very certificate at any time, to see what is in it."""
    client = client_context(certificate)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME
    try:
        return handshake(server, client)
    except ssl.SSLCertVerificationError as error:
        raise _untrusted(name, error.verify_message) from None
    except ssl.SSLError as error:
        raise _untrusted(name, error.reason or str(error)) from None


def _check_kind(leaf: ssl.SSLObject, name: str) -> None:
    """OpenSSL lets a server serve the certificate of a CA, engines (rustls) do not."""
    if _CA_TRUE.search(leaf.getpeercert(binary_form=True) or b""):
        raise _Unusable(
            reasons.TLS_CERTIFICATE_UNTRUSTED,
            f"The certificate in Secret {name} is one of a CA (CA:TRUE), which engines refuse from "
            f"a server: put one with CA:FALSE into {CERTIFICATE_KEY}, and leave the CA's in "
            f"{CA_KEY}.",
        )


def _check_trust(server: ssl.SSLContext, *, ca: str, leaf: ssl.SSLObject, name: str) -> None:
    client = client_context(ca)
    client.check_hostname = False
    try:
        handshake(server, client)
    except ssl.SSLCertVerificationError as error:
        fields = leaf.getpeercert() or {}
        begin, end = (str(fields[key]) for key in ("notBefore", "notAfter"))
        now = datetime.now(UTC)
        if error.verify_code == EXPIRED:
            which = "The certificate" if _time(end) <= now else "A CA of the certificate"
            when = f" on {_time(end):%Y-%m-%d %H:%M} UTC" if _time(end) <= now else ""
            text = f"{which} in Secret {name} expired{when}: renew it."
            raise _Unusable(reasons.TLS_CERTIFICATE_EXPIRED, text) from None
        if error.verify_code == NOT_YET_VALID:
            when = f" before {_time(begin):%Y-%m-%d %H:%M} UTC" if _time(begin) > now else " yet"
            text = f"The certificate in Secret {name}, or its CA, is not valid{when}."
            raise _Unusable(reasons.TLS_CERTIFICATE_EXPIRED, text) from None
        raise _untrusted(name, error.verify_message) from None


def _check_names(server: ssl.SSLContext, *, ca: str, hosts: Iterable[str], name: str) -> None:
    client, missing = client_context(ca), []
    for host in hosts:
        try:
            handshake(server, client, name=host)
        except ssl.SSLCertVerificationError as error:
            if error.verify_code != NAME_MISMATCH:
                raise _untrusted(name, error.verify_message) from None
            missing.append(host)
    if missing:
        wildcard = "*." + missing[0].partition(".")[2]
        raise _Unusable(
            reasons.TLS_NAMES_MISSING,
            f"The certificate in Secret {name} is not for {named(missing)}: add these DNS names to "
            f"it, or {wildcard}.",
        )


def _untrusted(name: str, why: str) -> _Unusable:
    return _Unusable(
        reasons.TLS_CERTIFICATE_UNTRUSTED,
        f"The certificate in Secret {name} is refused by clients that trust its {CA_KEY} ({why}): "
        f"{CA_KEY} must hold the root CA, {CERTIFICATE_KEY} the certificate and then any "
        "intermediate ones.",
    )


def _time(text: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC)

"""TLS as a rank's clients do it, by the standard library: who is trusted, and what was served."""

import os
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256

from kvtier.store.protocol import PeerCertificate

NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which the ssl module has no name for."""
NOT_YET_VALID, EXPIRED, NAME_MISMATCH = 9, 10, 62
"""OpenSSL's codes of what is wrong with a certificate (``verify_code``)."""
_ROUNDS = 10


def client_context(ca: str, *, check_time: bool = True) -> ssl.SSLContext:
    """Trusts what ``ca`` (PEM) signed, under the name that is asked for, and nothing else.

    ``check_time=False`` lets an expired certificate pass: the server still proves that it has the
    key. Raises ssl.SSLError or ValueError if ``ca`` is no PEM.
    """
    if not ca:
        raise ssl.SSLError("there is no CA to verify the server by")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # As engines do (rustls): a name in the subject is none.
    context.hostname_checks_common_name = False
    context.load_verify_locations(cadata=ca)
    if not check_time:
        context.verify_flags |= NO_CHECK_TIME
    return context


def server_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """A server with this chain and private key, both PEM. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with ExitStack() as stack:
        chain, private = (stack.enter_context(_in_memory(text)) for text in (certificate, key))
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(chain, private, password=lambda: "")
    return context


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """The path of a file that no disk has: the root file system is read-only, and keys stay out
    of directories."""
    descriptor = os.memfd_create("kvtier")
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, *, name: str | None = None
) -> ssl.SSLObject:
    """The client's side of a handshake of the two, without a network.

    Raises ssl.SSLCertVerificationError where the client refuses, ssl.SSLError for anything else.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server, server_hostname=name)
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_ROUNDS):
        try:
            client_side.do_handshake()
        except ssl.SSLWantReadError:
            pass
        else:
            return client_side
        with suppress(ssl.SSLWantReadError):
            server_side.do_handshake()
    raise ssl.SSLError("the handshake does not come to an end")


def peer(side: ssl.SSLObject, *, expired: bool = False) -> PeerCertificate:
    """The certificate that the other side proved to have the key of, once it was verified."""
    der, fields = side.getpeercert(binary_form=True), side.getpeercert()
    if not der or not fields:
        raise ValueError("the connection is not verified")
    return PeerCertificate(
        fingerprint=sha256(der).hexdigest(),
        not_after=ssl.cert_time_to_seconds(str(fields["notAfter"])),
        expired=expired,
    )

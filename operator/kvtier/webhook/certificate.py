"""The webhook's certificate: two files that somebody else renews, served without a restart."""

import logging
import ssl
from pathlib import Path

from kvtier.store.tls import NO_CHECK_TIME, client_context, handshake, peer, server_context
from kvtier.webhook.metrics import WebhookMetrics

log = logging.getLogger(__name__)

_READS = 3


class ServingCertificate:
    """A TLS server's context that serves the pair last found usable in two PEM files."""

    def __init__(self, *, certificate: Path, key: Path, metrics: WebhookMetrics) -> None:
        self._certificate = certificate
        self._key = key
        self._metrics = metrics
        self._seen: tuple[bytes, bytes] | str | None = None
        self._current: ssl.SSLContext | None = None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        # OpenSSL calls it in every handshake, also when the client names no server. Loading into
        # the live context instead would leave it, after a bad pair, with a half of each.
        self.context.sni_callback = self._use_current

    def _use_current(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext
    ) -> None:
        del name, context
        if self._current is not None:
            connection.context = self._current

    def look(self) -> bool:
        """Read the files, serve them if they are new and usable; whether any pair is served.

        What cannot be served is told once, and the pair before it serves on. Takes about 3 ms when
        the files have changed.
        """
        found = self._read()
        if found != self._seen:
            self._seen = found
            problem = found if isinstance(found, str) else self._serve(*found)
            if problem is not None:
                self._metrics.set_certificate_unusable()
                kept = "the one before it is served on" if self._current else "waiting for another"
                log.warning("certificate not usable, %s: %s", kept, problem)
        return self._current is not None

    def _read(self) -> tuple[bytes, bytes] | str:
        """Both files, or why not. Of one time: a volume swaps both at once, between two reads."""
        try:
            for _ in range(_READS):
                certificate, key = self._certificate.read_bytes(), self._key.read_bytes()
                if self._certificate.read_bytes() == certificate:
                    break
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        return certificate, key

    def _serve(self, certificate: bytes, key: bytes) -> str | None:
        """Serve this pair from the next handshake on; else why it cannot be served."""
        try:
            server = server_context(certificate, key)
            client = client_context(certificate.decode("ascii"))
            client.check_hostname = False
            client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME
            ends = peer(handshake(server, client)).not_after
        except ssl.SSLError as error:
            why = (error.reason or str(error)).replace("_", " ").lower()
            return f"{self._certificate} and {self._key}: {why}"
        except ValueError:
            return f"{self._certificate}: no certificate in PEM"
        self._current = server
        self._metrics.set_certificate(ends=ends)
        log.info("serving the certificate in %s", self._certificate)
        return None

"""How a limiter gets into a tier's ranks: the token in the Secret ``<tier>-limiter``, by name only.

Its user may ping and read INFO, and nothing else. Where a tier has TLS the same Secret has the CA.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from kvtier.api.types import KVCacheTierSpec
from kvtier.cluster.protocol import ApiError, Object
from kvtier.reconcile.clock import Clock
from kvtier.render.names import CA_KEY, PORT, TOKEN_KEY, host
from kvtier.store.protocol import Address, Credentials, TlsName

log = logging.getLogger(__name__)

USER: Final = "limiter"
"""The ACL user of ranks."""
AGAIN: Final = 10.0
"""Seconds after which a Secret is read again that is not there, or whose token ranks refuse."""

GetSecret = Callable[[str, str], Awaitable[Object | None]]
"""The Secret of a namespace and a name, None if there is none. Raises ApiError."""


def secret_name(tier: str) -> str:
    """Secret with the token of the limiter's user."""
    return f"{tier}-limiter"


class Login:
    """Of one tier. All its ranks share what was read."""

    def __init__(
        self, namespace: str, tier: str, *, spec: KVCacheTierSpec, get: GetSecret, clock: Clock
    ) -> None:
        self._namespace = namespace
        self._tier = tier
        self.spec = spec
        self._get = get
        self._clock = clock
        self._reading: asyncio.Task[None] | None = None
        self._read_at: float | None = None
        self._token: str | None = None
        self._ca: str | None = None
        self._stale = True
        self._closed = False

    def refused(self) -> None:
        """A rank does not take the token, or is not who the CA says: read the Secret again."""
        self._stale = True

    def get(self, rank: int) -> tuple[Address, Credentials] | None:
        """Where the rank is and how to get in; None while that is not known.

        It never waits for the API server: ranks are asked each second with what there is.
        """
        if self._stale and self._may_read():
            self._read_at = self._clock.monotonic()
            self._reading = asyncio.create_task(self._read())
        if self._token is None:
            return None
        name = host(self._tier, namespace=self._namespace, rank=rank)
        tls = None
        if self.spec.store.tls is not None:
            if self._ca is None:
                return None
            tls = TlsName(name=name, ca=self._ca)
        return Address(name, PORT, tls), Credentials(USER, self._token)

    def close(self) -> None:
        """Read nothing more."""
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()

    def _may_read(self) -> bool:
        if self._closed or (self._reading is not None and not self._reading.done()):
            return False
        return self._read_at is None or self._clock.monotonic() - self._read_at >= AGAIN

    async def _read(self) -> None:
        try:
            secret = await self._get(self._namespace, secret_name(self._tier))
        except ApiError as error:
            log.warning("%s/%s: Secret of its limiter: %s", self._namespace, self._tier, error)
            return
        except Exception:
            log.exception("%s/%s: Secret of its limiter", self._namespace, self._tier)
            return
        data = (secret or {}).get("data") or {}
        token, ca = _text(data, TOKEN_KEY), _text(data, CA_KEY)
        wants_ca = self.spec.store.tls is not None
        # What was read before serves on until there is something to read.
        self._token, self._ca = token or self._token, ca or self._ca
        self._stale = token is None or (wants_ca and ca is None)


def _text(data: Object, key: str) -> str | None:
    try:
        return base64.b64decode(data[key], validate=True).decode() or None
    except (KeyError, TypeError, ValueError, binascii.Error):
        return None

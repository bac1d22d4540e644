"""One connection to a rank through GLIDE, as the worker of one thread uses it."""

from typing import Any, Protocol

import glide_sync

from kvtier_lmcache.config import Config, Credentials, RankAddress

NAME = "kvtier"
_NOT_THERE = ("NOAUTH", "WRONGPASS", "invalid username-password")


class Client(Protocol):
    """What the plugin uses of GLIDE's client."""

    def get(self, key: bytes, buffer: memoryview) -> bytes | None: ...

    def set(self, key: bytes, value: memoryview) -> object: ...

    def exists(self, keys: list[Any]) -> int: ...

    def close(self) -> None: ...


def connect(rank: RankAddress, *, config: Config, credentials: Credentials) -> Client:
    """Blocks for at most about the connection timeout. Raises what GLIDE does, and OSError."""
    tls = None
    if config.ca is not None:
        tls = glide_sync.TlsAdvancedConfiguration(root_pem_cacerts=config.ca.read_bytes())
    client: Client = glide_sync.GlideClient.create(
        glide_sync.GlideClientConfiguration(
            addresses=[glide_sync.NodeAddress(rank.host, rank.port)],
            use_tls=config.tls,
            # In this order: GLIDE takes the password first.
            credentials=glide_sync.ServerCredentials(
                password=credentials.password, username=credentials.user
            ),
            request_timeout=round(config.request_timeout * 1e3),
            client_name=NAME,
            advanced_config=glide_sync.AdvancedGlideClientConfiguration(
                connection_timeout=round(config.connection_timeout * 1e3), tls_config=tls
            ),
        )
    )
    return client


def is_gone(error: Exception) -> bool:
    """Whether it says that the rank is not there for any request, rather than of one key."""
    gone = (glide_sync.TimeoutError, glide_sync.ConnectionError, glide_sync.ClosingError)
    if isinstance(error, gone):
        return True
    return isinstance(error, glide_sync.RequestError) and any(
        word in str(error) for word in _NOT_THERE
    )

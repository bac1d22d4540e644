"""Whether a rank answers, asked over a connection of its own.

Not with GLIDE: each of its clients stays registered with the process for good (so that a fork may
connect it again), one that never connected too. Attempts at a rank that is down for days would add
up.
"""

import socket
import ssl

from kvtier_lmcache.config import SEPARATOR, Config, Credentials, RankAddress

PROBE_SECONDS = 1.0
"""For all of it, and no more than the connection timeout. A network that drops packets costs an
attempt this long; the next one sends its own SYN, rather than wait for how TCP repeats one."""
_REFUSED = (b"-NOAUTH", b"-WRONGPASS", b"-LOADING", b"-MASTERDOWN")


class NotThere(Exception):
    """The rank does not answer as one that can be used; the text says how, without its words."""


def probe(rank: RankAddress, *, config: Config, credentials: Credentials) -> None:
    """Log in and ask for one key under the rank's prefix. Raises NotThere.

    A rank that forbids the key answers all the same: what it forbids is a miss, at no cost.
    """
    seconds = min(PROBE_SECONDS, config.connection_timeout)
    try:
        with socket.create_connection((rank.host, rank.port), timeout=seconds) as plain:
            if not config.tls:
                _ask(plain, rank=rank, credentials=credentials)
                return
            context = ssl.create_default_context(cafile=config.ca)
            with context.wrap_socket(plain, server_hostname=rank.host) as secure:
                _ask(secure, rank=rank, credentials=credentials)
    except ssl.SSLError as error:
        raise NotThere(f"TLS: {error.reason or type(error).__name__}") from None
    except TimeoutError:
        raise NotThere("timeout") from None
    except OSError as error:
        raise NotThere(error.strerror or type(error).__name__) from None


def _ask(connection: socket.socket, *, rank: RankAddress, credentials: Credentials) -> None:
    connection.sendall(
        _command("AUTH", credentials.user, credentials.password)
        + _command("EXISTS", f"{rank.prefix}{SEPARATOR}probe")
    )
    with connection.makefile("rb") as answers:
        for _ in range(2):
            answer = answers.readline(512)
            if not answer:
                raise NotThere("it closed the connection")
            if answer.startswith(_REFUSED):
                raise NotThere(answer.split()[0][1:].decode())


def _command(*words: str) -> bytes:
    encoded = [word.encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(
        b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded
    )

"""Host names to addresses, within a bounded time, which the system's resolver does not promise."""

import socket
import threading
from concurrent.futures import Future

from kvtier.redact import redact
from kvtier.store.failure import Failed, Kind

Address = tuple[str, int]


class Resolver:
    """Looks one host up, anew each time.

    The look-up runs in a thread that nobody waits for longer than they want; the next caller waits
    for the same one, so that a name server which does not answer costs one thread.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._lock = threading.Lock()
        self._pending: Future[Address] | None = None

    def address(self, *, seconds: float) -> Address:
        """Raises Failed."""
        with self._lock:
            pending = self._pending
            if pending is None:
                pending = self._pending = Future()
                threading.Thread(
                    target=self._look_up, args=(pending,), name="resolve", daemon=True
                ).start()
        try:
            found = pending.result(seconds)
        except TimeoutError:
            # Of result() or, the same type, of the look-up itself.
            said = f"no address within {seconds:g} s"
            raise Failed(Kind.TIMEOUT, redact(f"{self._host}: {said}")) from None
        except (OSError, UnicodeError) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise Failed(Kind.OTHER, redact(f"{self._host}: {said}")) from None
        finally:
            with self._lock:
                if pending.done() and self._pending is pending:
                    self._pending = None
        return found

    def _look_up(self, pending: "Future[Address]") -> None:
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            host, port = found[0][4][:2]
            pending.set_result((str(host), int(port)))
        except (OSError, UnicodeError) as error:
            pending.set_exception(error)

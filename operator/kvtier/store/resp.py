"""A small Valkey client for large values: what is read lands in one buffer per connection.

It knows those commands of RESP2 that the users of engines and of the probe have. One request is in
flight at a time, but for EXISTS, of which a whole look-up is.
"""

import errno
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from kvtier.redact import redact
from kvtier.store.failure import Failed, Kind, Reply

BUFFER_BYTES = 524_288
MOST_LINE_BYTES = 65_536
"""No server's answer of one line is longer; what is, is no Valkey's."""
MOST_INFO_BYTES = 1 << 20
_SEND_AT_ONCE = 512
_DENIED = ("NOPERM", "WRONGPASS", "NOAUTH")
_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH)

Feed = Callable[[memoryview], None]


class RespConnection:
    """One connection; after any Failed that is not a Reply it is closed and cannot be used again.

    ``seconds`` bounds each request, connecting with TLS and AUTH included. ``silence`` is the
    longest time for which the last request waited for a byte.
    """

    def __init__(
        self, *, seconds: float, tls: ssl.SSLContext | None = None, host: str = ""
    ) -> None:
        self.seconds = seconds
        self._tls = tls
        self._host = host
        self._secrets: tuple[str, ...] = ()
        self._socket: socket.socket | None = None
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._begin = self._end = 0
        self._deadline = self._timeout = 0.0
        self.silence = 0.0

    def open(self, address: tuple[str, int], *, username: str, password: str) -> None:
        """Connect to an address that is resolved already, and authenticate."""
        self._secrets = (password,)
        with self._request():
            link = socket.create_connection(address, timeout=self._left())
            self._socket = link
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                link.settimeout(self._left())
                self._socket = self._tls.wrap_socket(link, server_hostname=self._host)
            self._send(command(b"AUTH", username.encode(), password.encode()))
            self._line()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """Whether each key is there; all are asked at once."""
        found: list[bool] = []
        denied: Reply | None = None
        with self._request():
            # Answers are short, but a server that nobody reads from would stop reading itself.
            for first in range(0, len(keys), _SEND_AT_ONCE):
                batch = keys[first : first + _SEND_AT_ONCE]
                self._send(b"".join(command(b"EXISTS", key) for key in batch))
                for _ in batch:
                    try:
                        found.append(self._line() == b":1")
                    except Reply as error:
                        # The rest must be read all the same.
                        denied = denied or error
        if denied:
            raise denied
        return found

    def get(self, key: bytes, feed: Feed, *, most: int | None = None) -> int | None:
        """Hand the value to ``feed`` part by part; its size, or None if there is none.

        A part is valid only during the call. One of more than ``most`` bytes is not read.
        """
        return self._bulk(b"GET", key, feed=feed, most=most)

    def info(self, section: str) -> dict[str, str]:
        """Fields of a section of ``INFO``, as the server writes them."""
        text = bytearray()
        self._bulk(b"INFO", section.encode(), feed=text.extend, most=MOST_INFO_BYTES)
        lines = text.decode("utf-8", "replace").splitlines()
        pairs = (line.partition(":") for line in lines if not line.startswith("#"))
        return {name: value for name, colon, value in pairs if colon}

    def ping(self) -> None:
        with self._request():
            self._send(command(b"PING"))
            if self._line() != b"+PONG":
                raise ValueError("it answers PING with something else than PONG")

    def unlink(self, keys: Sequence[bytes]) -> None:
        with self._request():
            self._send(command(b"UNLINK", *keys))
            self._line()

    def _bulk(self, *parts: bytes, feed: Feed, most: int | None) -> int | None:
        with self._request():
            self._send(command(*parts))
            size = int(self._line().removeprefix(b"$"))
            if size < 0:
                return None
            if most is not None and size > most:
                raise ValueError(f"it answers {size} bytes, more than {most}")
            left = size
            while left:
                if self._begin == self._end:
                    self._receive()
                count = min(left, self._end - self._begin)
                feed(self._view[self._begin : self._begin + count])
                self._begin += count
                left -= count
            self._line()
            return size

    def set(
        self,
        key: bytes,
        parts: Iterable[bytes | memoryview],
        *,
        size: int,
        seconds_to_live: int | None = None,
    ) -> None:
        """Store a value of ``size`` bytes that comes in parts."""
        expiry = () if seconds_to_live is None else (b"EX", b"%d" % seconds_to_live)
        head = b"*%d\r\n%b$%d\r\n" % (3 + len(expiry), words(b"SET", key), size)
        with self._request():
            self._send(head)
            for part in parts:
                self._send(part)
            self._send(b"\r\n" + words(*expiry))
            self._line()

    def lend(self) -> socket.socket:
        """The socket itself, between two answers: whoever takes it asks nothing here any more.

        Raises Failed if it is closed.
        """
        with self._request():
            link = self._armed()
            if self._begin != self._end:
                raise ValueError("it sends more than it was asked for")
            return link

    def _send(self, data: bytes | memoryview) -> None:
        self._armed().sendall(data)

    def _receive(self) -> None:
        """Fill the buffer, which must be used up, with what there is."""
        link = self._armed()
        begun = time.monotonic()
        count = link.recv_into(self._buffer)
        self.silence = max(self.silence, time.monotonic() - begun)
        if count == 0:
            raise ConnectionResetError("the server closed the connection")
        self._begin, self._end = 0, count

    def _line(self) -> bytes:
        """One line of an answer without its end; an error that it tells is raised."""
        line = b""
        while True:
            end = self._buffer.find(b"\n", self._begin, self._end)
            stop = self._end if end < 0 else end + 1
            line += self._view[self._begin : stop]
            self._begin = stop
            if end >= 0:
                break
            if len(line) > MOST_LINE_BYTES:
                raise ValueError("its answer is no Valkey's")
            self._receive()
        text = line.rstrip(b"\r\n")
        if text.startswith(b"-"):
            said = text[1:].decode("utf-8", "replace")
            kind = Kind.DENIED if said.startswith(_DENIED) else Kind.OTHER
            raise Reply(kind, redact(said, *self._secrets))
        return text

    def _armed(self) -> socket.socket:
        """The socket, which waits at most until the deadline and a tenth of ``seconds`` more."""
        link = self._socket
        if link is None:
            raise ConnectionResetError("the connection is closed")
        left = self._left()
        # A system call each time would be half of what reading takes.
        if not left <= self._timeout <= left + self.seconds / 10:
            link.settimeout(left)
            self._timeout = left
        return link

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    @contextmanager
    def _request(self) -> Iterator[None]:
        self._deadline = time.monotonic() + self.seconds
        self.silence = 0.0
        try:
            yield
        except Reply:
            raise
        except (OSError, ValueError) as error:
            self.close()
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> Failed:
        if isinstance(error, TimeoutError):
            return Failed(Kind.TIMEOUT, f"no answer within {self.seconds:g} s")
        kind = Kind.OTHER
        if isinstance(error, ConnectionRefusedError):
            kind = Kind.REFUSED
        elif isinstance(error, ConnectionError | ssl.SSLEOFError | ssl.SSLZeroReturnError):
            kind = Kind.RESET
        elif isinstance(error, OSError) and error.errno in _UNREACHABLE:
            kind = Kind.REFUSED
        return Failed(kind, redact(" ".join(str(error).split()), *self._secrets))


def command(*parts: bytes) -> bytes:
    """A request as it goes over the wire."""
    return b"*%d\r\n%b" % (len(parts), words(*parts))


def words(*parts: bytes) -> bytes:
    return b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)

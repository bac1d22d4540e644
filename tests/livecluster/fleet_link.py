"""How an engine of a fleet talks to a rank: many commands at once. Part of what runs in the pod."""

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from io import BufferedReader
from typing import cast

from kvtier.loadtest.connection import Connection
from kvtier.loadtest.rank import connect_seconds
from kvtier.store.address import RankAddress
from kvtier.store.failure import Failed
from kvtier.store.resolve import Resolver
from kvtier.store.resp import RespConnection

RETRY_SECONDS = 0.25
PATIENCE_SECONDS = 5.0
"""Of a batch, on all ranks: more than the Secret's timeout, so that a stall is measured and not cut
off."""
LEAST_SECONDS = 0.05
BUFFER_BYTES = 1 << 18


class No(Enum):
    """Why a rank gave no answer to a command. ``LOST``: it is down, or went down meanwhile."""

    DENIED = "denied"
    LOST = "lost"
    ERROR = "error"


Answer = bytes | None | No


class Link:
    """One connection to one rank. While it is down the rank is a miss, and a thread mends it."""

    def __init__(self, connection: Connection, address: RankAddress) -> None:
        self._connection = connection
        self._address = address
        self._resolver = Resolver(address.host, address.port)
        self._stop = threading.Event()
        self._tried = threading.Event()
        self._opened = threading.Event()
        self._socket: socket.socket | None = None
        self._stream: BufferedReader | None = None
        self._mender = threading.Thread(target=self._mend, daemon=True)
        self._mender.start()

    def wait_tried(self) -> None:
        self._tried.wait(2 * connect_seconds(self._connection))

    def wait_opened(self, seconds: float) -> None:
        """Until it was up for the first time, so many seconds at most."""
        self._opened.wait(seconds)

    def send(self, commands: Sequence[bytes]) -> bool:
        """Whether the rank is up and was sent them."""
        link = self._socket
        if link is None:
            return False
        try:
            link.settimeout(PATIENCE_SECONDS)
            link.sendall(b"".join(commands))
        except OSError:
            self._drop()
            return False
        return True

    def answers(self, count: int, *, deadline: float) -> list[Answer] | None:
        """None if the rank went down before the last, or says nothing until the deadline (of the
        monotonic clock)."""
        link = self._socket
        if link is None:
            return None
        try:
            link.settimeout(max(deadline - time.monotonic(), LEAST_SECONDS))
            return [self._answer() for _ in range(count)]
        except (OSError, ValueError):
            self._drop()
            return None

    def close(self) -> None:
        self._stop.set()
        self._mender.join()
        self._drop()

    def _answer(self) -> Answer:
        assert self._stream
        line = self._stream.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError
        if line.startswith(b"-"):
            return No.DENIED if line.startswith((b"-NOPERM", b"-NOAUTH")) else No.ERROR
        if not line.startswith(b"$"):
            return line[1:-2]
        size = int(line[1:])
        if size < 0:
            return None
        value = self._stream.read(size + 2)
        if len(value) < size + 2:
            raise ConnectionResetError
        return value[:-2]

    def _drop(self) -> None:
        link, self._socket = self._socket, None
        if link is not None and self._stream is not None:
            self._stream.close()
            link.close()

    def _mend(self) -> None:
        while not self._stop.is_set():
            if self._socket is None:
                with suppress(Failed):
                    self._open()
                self._tried.set()
            self._stop.wait(RETRY_SECONDS)

    def _open(self) -> None:
        connection = self._connection
        seconds = connect_seconds(connection)
        address = self._resolver.address(seconds=seconds)
        tls = connection.tls_context()
        session = RespConnection(seconds=seconds, tls=tls, host=self._address.host)
        try:
            session.open(address, username=connection.username, password=connection.password)
            link = session.lend()
        except Failed:
            session.close()
            raise
        link.settimeout(PATIENCE_SECONDS)
        self._stream = cast(BufferedReader, link.makefile("rb", buffering=BUFFER_BYTES))
        self._socket = link
        self._opened.set()

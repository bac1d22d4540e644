"""A relay before a rank: counts what crosses it, and does to the answers what a test wants."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tcp_server import listening


@dataclass
class Relay:
    port: int = 0
    to_server: int = 0
    to_client: int = 0
    open: int = 0
    most_open: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def entered(self, change: int) -> None:
        with self.lock:
            self.open += change
            self.most_open = max(self.most_open, self.open)


Alter = Callable[[bytes, int], bytes | None]
"""(bytes on their way to the client, how many came before) -> what to send; None: close."""


@contextmanager
def relay(port: int, *, alter: Alter = lambda data, _: data) -> Iterator[Relay]:
    found = Relay()

    def up(client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                found.to_server += len(data)
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def serve(client: socket.socket) -> None:
        found.entered(+1)
        seen = 0
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", port)) as server:
            threading.Thread(target=up, args=(client, server), daemon=True).start()
            while data := server.recv(65536):
                found.to_client += len(data)
                altered = alter(data, seen)
                seen += len(data)
                if altered is None:
                    # Closing would wait for the thread that still reads of it.
                    client.shutdown(socket.SHUT_RDWR)
                    break
                client.sendall(altered)
        found.entered(-1)

    with listening(serve) as own:
        found.port = own
        yield found


@contextmanager
def answering(answer: bytes, *, again: bool = False) -> Iterator[int]:
    """The port of a server that answers whatever comes with the same bytes, perhaps for ever."""

    def serve(client: socket.socket) -> None:
        with suppress(OSError), client:
            while client.recv(65536):
                client.sendall(answer)
                while again:
                    client.sendall(answer)

    with listening(serve) as port:
        yield port

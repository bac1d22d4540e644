"""A relay before a rank: counts what crosses it, and does to the answers what a test wants."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tcp_server import listening

TCP_ESTABLISHED = 1
"""First byte of ``struct tcp_info``, from the kernel's ``tcp_states.h``."""


@dataclass
class Relay:
    port: int = 0
    to_server: int = 0
    to_client: int = 0
    most_open: int = 0
    """Connections that were open at once, as the client saw it."""
    clients: list[socket.socket] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def entered(self, client: socket.socket) -> None:
        """The kernel knows at once that a client closed; the thread that relays learns later."""
        with self.lock:
            self.clients.append(client)
            now_open = sum(is_established(each) for each in self.clients)
            self.most_open = max(self.most_open, now_open)


def is_established(connection: socket.socket) -> bool:
    try:
        state: int = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return False
    return state == TCP_ESTABLISHED


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
        found.entered(client)
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

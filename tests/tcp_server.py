"""A server on loopback that hands each connection to a thread of its own."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Its port; ``serve`` is called with each client until the context ends."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()

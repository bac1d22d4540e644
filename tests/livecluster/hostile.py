"""A client with an engine's credentials that does its worst to one rank's memory."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from livecluster.ranks import Engine

MIB = 1 << 20
SECONDS = 2.0


@dataclass(slots=True)
class Hostile:
    """Connections that are kept open and never read, to one rank."""

    engine: Engine
    rank: int
    links: list[socket.socket] = field(default_factory=list)
    refused: int = 0

    def connect(self) -> socket.socket | None:
        """One more connection that is logged in; None once the server takes no more."""
        token = self.engine.token
        try:
            link = socket.create_connection(self.engine.address(self.rank), timeout=SECONDS)
        except OSError:
            self.refused += 1
            return None
        self.links.append(link)
        link.settimeout(SECONDS)
        try:
            link.sendall(command("AUTH", token, token))
            accepted = link.recv(64).startswith(b"+OK")
        except OSError:
            accepted = False
        if not accepted:
            self.refused += 1
            return None
        return link

    def everywhere(self, attack: Callable[[socket.socket], None], *, links: int) -> None:
        """Attack over so many connections, as many of them as the server takes."""
        for _ in range(links):
            link = self.connect()
            if link is not None:
                # Being cut off is what should happen.
                with suppress(OSError):
                    attack(link)

    def never_reads(self, key: str, *, times: int) -> Callable[[socket.socket], None]:
        """Ask for a large value again and again without reading any."""
        return lambda link: link.sendall(command("GET", key) * times)

    def never_ends(self, key: str, *, announced: int, sent: int) -> Callable[[socket.socket], None]:
        """Announce a value of so many bytes, send some of them, and stop."""
        head = f"*3\r\n$3\r\nSET\r\n${len(key)}\r\n{key}\r\n${announced}\r\n".encode()

        def attack(link: socket.socket) -> None:
            link.sendall(head)
            block = bytes(64 << 10)
            for _ in range(sent // len(block)):
                link.sendall(block)

        return attack

    def fills(self, prefix: str, *, size: int, count: int) -> None:
        """Store large values, more than the rank can hold."""
        block = bytes(size)
        for number in range(count):
            link = self.links[0] if self.links else self.connect()
            if link is None:
                continue
            try:
                link.sendall(command("SET", f"{prefix}{number}", block))
                link.recv(64)
            except OSError:
                self.links.remove(link)
                link.close()


@contextmanager
def hostile(engine: Engine, *, rank: int) -> Iterator[Hostile]:
    """One such client; all of its connections are closed at the end."""
    client = Hostile(engine=engine, rank=rank)
    try:
        yield client
    finally:
        for link in client.links:
            link.close()


def command(*words: str | bytes) -> bytes:
    """One command in the server's protocol."""
    parts = [word.encode() if isinstance(word, str) else word for word in words]
    return b"".join(
        [f"*{len(parts)}\r\n".encode()]
        + [f"${len(part)}\r\n".encode() + part + b"\r\n" for part in parts]
    )


def keep_up(attack: Callable[[], None], *, seconds: float) -> int:
    """Repeat an attack for so long; how often."""
    deadline, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        attack()
        rounds += 1
    return rounds

"""Reading values as fast as they come, and throwing them away: what the probe times."""

import selectors
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final

from kvtier.probe.rates import Sample
from kvtier.store.failure import Failed, Kind
from kvtier.store.resp import BUFFER_BYTES, command

DRAINED: Final = 8
"""After so many values one connection asks for none until it has got all. What Valkey 9.1.2 sends
without a copy counts as buffered until it owes the client nothing any more, and a client that
always asks ahead is closed for more than ``client-output-buffer-limit``, 16 values, though nothing
waits. 8.1.8 does not do that, nor 9.1.2 with ``min-string-size-avoid-copy-reply 0``."""
SAMPLE_SECONDS: Final = 0.005
STEP_SECONDS: Final = 0.002
"""A rank that is ahead of the others looks so often whether they have caught up."""
_RECORDS: Final = 32
"""TLS hands over one record of 16 KiB at a time: so many before other connections have their
turn."""
_LATER: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Stream:
    """One connection. Every answer to a GET must have the same bytes around the value, so the
    stream repeats itself, and only its place in that is kept."""

    def __init__(self, link: socket.socket, *, size: int, ahead: int) -> None:
        self.link = link
        self._ahead = ahead
        self.asked = self.got = 0
        self._unsent = b""
        self._head = b"$%d\r\n" % size
        self._whole = len(self._head) + size + 2
        self._place = 0

    @property
    def may_ask(self) -> bool:
        ahead = self.asked - self.got
        return ahead == 0 or (ahead < self._ahead and self.asked % DRAINED != 0)

    def ask(self, key: bytes) -> None:
        self.asked += 1
        self._unsent += command(b"GET", key)
        self.send()

    def send(self) -> None:
        """Requests are so short that the kernel takes them at once, but nothing says it must."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self.link.send(self._unsent) :]
        except _LATER:
            pass

    def take(self, part: memoryview) -> None:
        """What came. Raises Failed for anything that is no value of the right size."""
        while part:
            head = self._head[self._place : self._place + len(part)]
            if part[: len(head)] != head:
                said = bytes(part[:80]).split(b"\r\n", 1)[0].decode("utf-8", "replace")
                what = "the value is gone" if said == "$-1" else f"it answered {said!r}"
                raise Failed(Kind.OTHER, f"{what} while it was read")
            count = min(len(part), self._whole - self._place)
            self._place += count
            part = part[count:]
            if self._place == self._whole:
                self._place = 0
                self.got += 1


def read(
    links: Sequence[socket.socket],
    *,
    keys: Sequence[bytes],
    size: int,
    ahead: int,
    values: int,
    seconds: float,
    in_step: Callable[[int, int], bool],
    interrupt: Callable[[], bool],
    watch: int,
) -> list[Sample]:
    """Ask for ``values`` values, in turn those of ``keys``, over all links at once, for at most so
    many seconds or until ``interrupt()``, which is asked when descriptor ``watch`` can be read.
    Each link has asked for up to ``ahead`` values that it has not got yet, and while
    ``in_step(bytes asked for, bytes that came)`` is False for none.

    Returns how many bytes had come when. Every value that was asked for is of ``size`` bytes, so no
    more than ``values`` times that crosses the network. Raises Failed.
    """
    buffer = memoryview(bytearray(BUFFER_BYTES))
    streams = [_Stream(link, size=size, ahead=ahead) for link in links]
    left = values
    total = 0
    stopped = False
    began = time.monotonic()
    samples: list[Sample] = [(began, 0)]
    end = began + seconds
    with selectors.DefaultSelector() as ready:
        ready.register(watch, selectors.EVENT_READ)
        for stream in streams:
            stream.link.setblocking(False)
            ready.register(stream.link, selectors.EVENT_READ, stream)

        def ask(stream: _Stream) -> None:
            nonlocal left
            while left and stream.may_ask and in_step((values - left) * size, total):
                left -= 1
                stream.ask(keys[left % len(keys)])

        try:
            for stream in streams:
                ask(stream)
            while left or any(stream.asked > stream.got for stream in streams):
                now = time.monotonic()
                if now >= end:
                    break
                found = ready.select(min(end - now, STEP_SECONDS))
                if any(key.data is None for key, _ in found) and interrupt():
                    stopped = True
                    break
                for key, _ in found:
                    if key.data is None:
                        continue
                    total += _receive(key.data, buffer)
                for stream in streams:
                    ask(stream)
                    stream.send()
                now = time.monotonic()
                if now - samples[-1][0] >= SAMPLE_SECONDS:
                    samples.append((now, total))
        except OSError as error:
            said = " ".join(str(error).split())
            raise Failed(Kind.RESET, f"{said} while it was read") from None
    if stopped and not total:
        raise Failed(Kind.OTHER, "not one byte came while another rank was read to the end")
    if not total:
        raise Failed(Kind.TIMEOUT, f"not one byte of a value came within {seconds:g} s")
    samples.append((time.monotonic(), total))
    return samples


def _receive(stream: _Stream, buffer: memoryview) -> int:
    """Take what there is; returns how many bytes."""
    count = 0
    rounds = _RECORDS if isinstance(stream.link, ssl.SSLSocket) else 1
    for _ in range(rounds):
        try:
            some = stream.link.recv_into(buffer)
        except _LATER:
            break
        if not some:
            raise Failed(Kind.RESET, "the server closed the connection while it was read")
        stream.take(buffer[:some])
        count += some
    return count

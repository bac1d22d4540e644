"""What is stored under a key, so that each wrong byte is seen and told apart.

A value is a header that says who wrote it for whom, then a payload that follows from the key: a
stretch of one fixed pattern, over and over, begun where the key says. A reader compares each byte
with what it must be as it arrives; that costs a tenth of what a checksum does. Where the header
names another key, rank, generation or tier, the checksum in it tells a whole value of somebody
else from rubbish.
"""

import hashlib
import random
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# magic, generation, rank, place, writer, payload bytes, CRC-32 of the payload; then CRC-32 of these
_FIELDS: Final = struct.Struct(">8s16sH16s24sQI")
_MAGIC: Final = b"kvtload1"
HEADER_BYTES: Final = _FIELDS.size + 4

# Prime, so that bytes which moved by any power of two are other bytes.
_PERIOD: Final = 131_071
PIECE_BYTES: Final = 131_072
"""Most bytes that are compared or sent at once: what stays in a core's own cache."""
_PATTERN: Final = bytes(
    (base := random.Random("kvtier").randbytes(_PERIOD)) + (base * 2)[:PIECE_BYTES]
)
_VIEW: Final = memoryview(_PATTERN)


class Verdict(StrEnum):
    """``FOREIGN``: a whole value, but of another key, rank or tier. ``STALE``: of another
    generation. ``CORRUPT``: anything else that is not right, a torn value included."""

    RIGHT = "right"
    CORRUPT = "corrupt"
    FOREIGN = "foreign"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Identity:
    """For whom a value is: ``place`` stands for the tier and the whole key."""

    generation: str
    rank: int
    place: bytes


def identity(*, tier: str, generation: str, rank: int, key: bytes) -> Identity:
    """``tier`` is namespace and name: generations of equal models have equal ids in all tiers."""
    place = hashlib.blake2b(tier.encode() + b"\0" + key, digest_size=16).digest()
    return Identity(generation=generation, rank=rank, place=place)


def header(owner: Identity, *, writer: str, size: int) -> bytes:
    """The first bytes of a value of ``size`` bytes in all. ``writer`` is cut to 24 bytes."""
    length = size - HEADER_BYTES
    checksum = 0
    for piece in payload(owner, length):
        checksum = zlib.crc32(piece, checksum)
    fields = _FIELDS.pack(
        _MAGIC,
        owner.generation.encode(),
        owner.rank,
        owner.place,
        writer.encode()[:24],
        length,
        checksum,
    )
    return fields + struct.pack(">I", zlib.crc32(fields))


def payload(owner: Identity, length: int) -> Iterator[memoryview]:
    """The bytes behind the header, in pieces that cost no copy."""
    position = 0
    while position < length:
        count = min(PIECE_BYTES, length - position)
        start = _start(owner, position)
        yield _VIEW[start : start + count]
        position += count


def _start(owner: Identity, position: int) -> int:
    return (int.from_bytes(owner.place[:8], "big") + position) % _PERIOD


class Checker:
    """Judges one value as it arrives in parts of any size."""

    def __init__(self, owner: Identity, *, size: int) -> None:
        self._owner = owner
        self._size = size
        self._head = bytearray()
        self._seen = 0
        self._verdict: Verdict | None = None
        self._length = 0
        self._expected_sum = 0
        self._sum = 0
        self._start = _start(owner, 0)

    def feed(self, part: memoryview) -> None:
        """Take the next bytes of the value."""
        lacking = HEADER_BYTES - len(self._head)
        if lacking:
            self._head += part[:lacking]
            if len(self._head) < HEADER_BYTES:
                return
            self._read_head()
            part = part[lacking:]
        while part:
            piece, part = part[:PIECE_BYTES], part[PIECE_BYTES:]
            self._judge(piece)
            self._seen += len(piece)

    def verdict(self) -> Verdict:
        """Once the whole value has been fed."""
        if len(self._head) < HEADER_BYTES or self._seen != self._length:
            return Verdict.CORRUPT
        if self._verdict in (Verdict.FOREIGN, Verdict.STALE) and self._sum != self._expected_sum:
            return Verdict.CORRUPT
        return self._verdict or Verdict.RIGHT

    def _judge(self, piece: memoryview) -> None:
        if self._verdict is None:
            start = (self._start + self._seen) % _PERIOD
            # Compares without a copy, at the speed of memory; memoryviews compare byte by byte.
            if not _PATTERN.startswith(piece, start):
                self._verdict = Verdict.CORRUPT
        elif self._verdict is not Verdict.CORRUPT:
            self._sum = zlib.crc32(piece, self._sum)

    def _read_head(self) -> None:
        fields = bytes(self._head[: _FIELDS.size])
        magic, generation, rank, place, _, self._length, self._expected_sum = _FIELDS.unpack(fields)
        (own_sum,) = struct.unpack(">I", self._head[_FIELDS.size :])
        if magic != _MAGIC or own_sum != zlib.crc32(fields):
            self._verdict = Verdict.CORRUPT
        elif generation.rstrip(b"\0") != self._owner.generation.encode():
            self._verdict = Verdict.STALE
        elif (rank, place) != (self._owner.rank, self._owner.place):
            self._verdict = Verdict.FOREIGN
        elif self._length != self._size - HEADER_BYTES:
            self._verdict = Verdict.CORRUPT

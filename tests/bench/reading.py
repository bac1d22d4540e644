"""Reading the same values three ways: the load test's client, plain sockets, valkey-py."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import valkey

from kvtier.loadtest.connection import Connection
from kvtier.loadtest.rank import Budget, Rank
from kvtier.loadtest.striping import Striping
from kvtier.store.address import RankAddress

USER, PASSWORD, PREFIX = "engine", "engine-password", "kvt-0123456789ab-r0"
ACL = (
    "user default off\n"
    f"user {USER} on >{PASSWORD} ~{PREFIX}@* +auth +get +set +exists +hello +client|setinfo\n"
)
GIVE_UP = 30.0
Read = Callable[[bytes], object]
"""Reads the value of a key."""
Opened = AbstractContextManager[Read]


class Store:
    """One server that holds ``count`` values of ``size`` bytes, read over ``connections``."""

    def __init__(self, port: int, *, size: int, count: int, connections: int) -> None:
        self.port = port
        self.size = size
        self.connections = connections
        self.keys = [f"{PREFIX}@bench@01000100@0@{number:04x}".encode() for number in range(count)]
        address = RankAddress(rank=0, host="127.0.0.1", port=port, prefix=PREFIX)
        connection = Connection(
            tier="bench",
            namespace="bench",
            generation="0123456789ab",
            striping=Striping.HASH,
            model="bench",
            kv_ranks=("01000100",),
            chunk_tokens=256,
            chunk_bytes=size,
            prefill_rates=((0.0, 1.0),),
            hit_latency=0.0,
            hit_engine_time=0.0,
            username=USER,
            password=PASSWORD,
            workers=connections,
            request_timeout=GIVE_UP,
            ca_file=None,
            ranks=(address,),
        )
        self._rank = Rank(connection, address, writer="bench", budget=Budget(1 << 50))
        self._rank.start()
        deadline = time.monotonic() + GIVE_UP
        while not self._rank.tried:
            assert time.monotonic() < deadline, "the rank does not answer"
            time.sleep(0.01)
        stored = self._rank.settle(self._rank.store(self.keys))
        assert stored == set(self.keys)

    def close(self) -> None:
        self._rank.close(deadline=time.monotonic() + GIVE_UP)

    def by_client(self) -> float:
        """Bytes/s of the load test's own client, every byte checked."""
        begun = time.perf_counter()
        read = self._rank.settle(self._rank.fetch(self.keys))
        spent = time.perf_counter() - begun
        assert read == set(self.keys), "a value was not right"
        return len(self.keys) * self.size / spent

    def by_sockets(self) -> float:
        """Bytes/s of GET and ``recv_into`` a buffer of a value's size, nothing looked at."""

        def open_() -> Opened:
            return plain_reader(self.port, size=self.size, user=USER, password=PASSWORD)

        return timed(open_, self.keys, size=self.size, connections=self.connections)

    def by_library(self) -> float:
        """Bytes/s of valkey-py's GET, nothing looked at."""

        @contextmanager
        def open_() -> Iterator[Read]:
            with valkey.Valkey(
                port=self.port, username=USER, password=PASSWORD, lib_name=None
            ) as client:

                def get(key: bytes) -> None:
                    value = client.get(key)
                    assert isinstance(value, bytes)
                    assert len(value) == self.size

                yield get

        return timed(open_, self.keys, size=self.size, connections=self.connections)


@contextmanager
def plain_reader(port: int, *, size: int, user: str, password: str) -> Iterator[Read]:
    """A connection that GETs values of so many bytes and looks at nothing: the floor."""
    with socket.create_connection(("127.0.0.1", port), timeout=GIVE_UP) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(_words(b"AUTH", user.encode(), password.encode()))
        assert link.recv(64) == b"+OK\r\n"
        whole = len(f"${size}\r\n") + size + 2
        view = memoryview(bytearray(whole))

        def get(key: bytes) -> None:
            link.sendall(_words(b"GET", key))
            got = 0
            while got < whole:
                got += link.recv_into(view[got:])

        yield get


def timed(
    open_: Callable[[], Opened], keys: Sequence[bytes], *, size: int, connections: int
) -> float:
    """Bytes/s over so many connections together, each of which takes the next key when it has read
    one."""
    left = iter(keys)
    lock = threading.Lock()

    def work(get: Read) -> None:
        while True:
            with lock:
                key = next(left, None)
            if key is None:
                return
            get(key)

    with ExitStack() as stack:
        readers = [stack.enter_context(open_()) for _ in range(connections)]
        threads = [threading.Thread(target=work, args=(get,)) for get in readers]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(keys) * size / (time.perf_counter() - begun)


def _words(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)

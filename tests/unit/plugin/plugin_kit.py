"""Ranks for the plugin's tests, and an adapter driven as LMCache's controllers drive it."""

import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from socket import create_connection
from time import monotonic, sleep
from typing import Any

from lmcache.v1.distributed.api import ObjectKey
from valkey_servers import Server, free_port, running_server

from kvtier_lmcache import StripedL2Adapter

PATIENCE = 30.0
"""Seconds for what takes milliseconds: the machine may be busy."""
COMMANDS = "+get +set +exists +hello +auth +ping +info +client|setinfo +client|setname"


def acl(token: str, prefix: str) -> str:
    return (
        "user default reset\n"
        f"user {token} reset on >{token} ~{prefix}@* {COMMANDS}\n"
        "user admin reset on >admin ~* &* +@all\n"
    )


@dataclass
class Rank:
    """``stack`` is what stops its server. ``port`` stays the same when it starts again."""

    number: int
    home: Path
    port: int
    token: str = "token-1"
    server: Server | None = None
    stack: ExitStack | None = None

    @property
    def prefix(self) -> str:
        return f"kvt-test-r{self.number}"

    def start(self) -> None:
        self.stack = ExitStack()
        self.server = self.stack.enter_context(
            running_server(
                "9.1", directory=self.home, acl=acl(self.token, self.prefix), port=self.port
            )
        )

    def stop(self) -> None:
        if self.stack is not None:
            # A stopped process is killed all the same.
            self.stack.close()
            self.stack = None

    def signal(self, number: signal.Signals) -> None:
        assert self.server is not None
        os.kill(self.server.pid, number)

    def admin(self, *commands: str) -> list[bytes]:
        """Inline commands, and the first line of what each is answered."""
        with create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.sendall(
                "".join(f"{c}\r\n" for c in ("AUTH admin admin", *commands)).encode()
            )
            with connection.makefile("rb") as answers:
                return [answers.readline() for _ in range(1 + len(commands))][1:]

    def clients(self) -> bytes:
        with create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.sendall(b"AUTH admin admin\r\nCLIENT LIST\r\n")
            with connection.makefile("rb") as answers:
                answers.readline()
                return answers.read(int(answers.readline()[1:]))


@dataclass
class Tier:
    ranks: list[Rank]
    credentials: Path

    def given(self, **other: object) -> dict[str, Any]:
        """The plugin's parameters. Nothing times out, unless a test wants it to."""
        ranks = [
            {"host": "127.0.0.1", "port": rank.port, "prefix": rank.prefix} for rank in self.ranks
        ]
        return {
            "striping": "Hash",
            "ranks": ranks,
            "credentials": str(self.credentials),
            "workers": 4,
            "request_timeout": PATIENCE,
            "connection_timeout": PATIENCE,
            **other,
        }


@contextmanager
def running_tier(home: Path, *, ranks: int) -> Iterator[Tier]:
    tier = Tier([], home / "token")
    tier.credentials.write_text("token-1\n")
    with ExitStack() as stack:
        for number in range(ranks):
            place = home / f"rank-{number}"
            place.mkdir()
            rank = Rank(number, place, free_port())
            stack.callback(rank.stop)
            rank.start()
            tier.ranks.append(rank)
        yield tier


def key(name: str, *, kv_rank: int = 0, group: int = 0, salt: str = "") -> Any:
    digest = blake2b(name.encode(), digest_size=32).digest()
    return ObjectKey(
        chunk_hash=digest,
        model_name="org/model",
        kv_rank=kv_rank,
        object_group_id=group,
        cache_salt=salt,
    )


def keys(name: str, count: int) -> list[Any]:
    return [key(f"{name} {number}") for number in range(count)]


class Chunk:
    """A memory object, as far as the plugin looks at one."""

    def __init__(self, contents: bytes) -> None:
        self.byte_array = memoryview(bytearray(contents))
        self.references = 1

    def get_size(self) -> int:
        return self.byte_array.nbytes

    def ref_count_up(self) -> None:
        self.references += 1

    def ref_count_down(self) -> None:
        self.references -= 1


class Driver:
    """Submits a task and waits for its event, as LMCache does."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.adapter = StripedL2Adapter(given)
        self._stored: dict[int, Any] = {}

    def states(self) -> list[str]:
        return [each["breaker"] for each in self.adapter.report_status()["ranks"]]

    def reach(self, state: str, *, rank: int = 0, within: float = PATIENCE) -> float:
        """Seconds until the rank's breaker is in this state."""
        begun = monotonic()
        while self.states()[rank] != state:
            assert monotonic() - begun < within, f"{self.states()[rank]} after {within} s"
            sleep(0.005)
        return monotonic() - begun

    def connected(self) -> "Driver":
        for rank in range(len(self.states())):
            self.reach("closed", rank=rank)
        return self

    def store(self, keys: Sequence[Any], values: Sequence[bytes]) -> Any:
        """The L2StoreResult."""
        self.storing(keys, values)()
        return self._stored[max(self._stored)]

    def look_up(self, keys: Sequence[Any]) -> list[bool]:
        return self.looking_up(keys)()

    def load(self, keys: Sequence[Any], *, size: int) -> list[bytes | None]:
        return self.loading(keys, size=size)()

    def storing(self, keys: Sequence[Any], values: Sequence[bytes]) -> Callable[[], list[bool]]:
        """Submits, and gives what waits for it and says whether all is stored."""
        task = self.adapter.submit_store_task(list(keys), [Chunk(value) for value in values])

        def end() -> list[bool]:
            while task not in self._stored:
                self._wait(self.adapter.get_store_event_fd())
                self._stored |= self.adapter.pop_completed_store_tasks()
            return [self._stored[task].is_successful()]

        return end

    def looking_up(self, keys: Sequence[Any]) -> Callable[[], list[bool]]:
        task = self.adapter.submit_lookup_and_lock_task(list(keys), {})

        def end() -> list[bool]:
            while (found := self.adapter.query_lookup_and_lock_result(task)) is None:
                self._wait(self.adapter.get_lookup_and_lock_event_fd())
            assert len(found) == len(keys)
            return [found.test(at) for at in range(len(keys))]

        return end

    def loading(self, keys: Sequence[Any], *, size: int) -> Callable[[], list[bytes | None]]:
        chunks = [Chunk(bytes(size)) for _ in keys]
        task = self.adapter.submit_load_task(list(keys), chunks)

        def end() -> list[bytes | None]:
            loaded = self.loaded(task)
            return [
                bytes(chunk.byte_array) if loaded.test(at) else None
                for at, chunk in enumerate(chunks)
            ]

        return end

    def loaded(self, task: int) -> Any:
        """The bitmap of a load."""
        while (loaded := self.adapter.query_load_result(task)) is None:
            self._wait(self.adapter.get_load_event_fd())
        return loaded

    def _wait(self, descriptor: int) -> None:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        assert poller.poll(3 * PATIENCE * 1e3), "no event"
        with suppress(BlockingIOError):
            os.eventfd_read(descriptor)


NewTier = Callable[..., Tier]
NewDriver = Callable[..., Driver]

"""One rank, three ways: in memory, a real Valkey 8.1 and a real 9.1."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_under_test import RANK, SETTINGS, RankUnderTest, on_server
from valkey_servers import Server, running_server

from kvtier.api.types import KVCacheTierSpec
from kvtier.generation.acl import acl_file
from kvtier.generation.record import Record, new_record
from kvtier.redact import new_token
from kvtier.store.fake import FakeServer, FakeStores
from kvtier.store.fake_server import as_text
from kvtier.store.protocol import Address


@pytest.fixture(scope="session")
def record() -> Record:
    spec = KVCacheTierSpec.model_validate(
        {
            "model": {
                "name": "m",
                "revision": "r",
                "kvCacheDtype": "bfloat16",
                "layout": {"gqa": {"layers": 4, "kvHeads": 8, "headDim": 128}},
            },
            "pool": {"ranks": 8, "prefillRate": [{"tokensPerSecond": 5000}]},
            "store": {"memoryPerRank": "256Mi"},
        }
    )
    return new_record(
        spec,
        operator_token=new_token(),
        engine_token=new_token(),
        probe_token=new_token(),
        limiter_token=new_token(),
    )


@pytest.fixture(params=["fake", "8.1", "9.1"])
def rank(request: pytest.FixtureRequest, tmp_path: Path, record: Record) -> Iterator[RankUnderTest]:
    text = acl_file(record, rank=RANK)
    if request.param != "fake":
        with running_server(request.param, directory=tmp_path, acl=text, settings=SETTINGS) as s:
            yield on_server(s, record)
        return
    fake = FakeServer(acl_file=text, settings=SETTINGS)
    address = Address("127.0.0.1", 6379)
    yield RankUnderTest(
        address=address,
        connect=FakeStores({address: fake}).connect,
        record=record,
        write_acl_file=lambda new: setattr(fake, "acl_file", new),
        write_keys=lambda keys: fake.keys.update(map(as_text, keys)),
    )


@pytest.fixture(params=["8.1", "9.1"])
def server(request: pytest.FixtureRequest, tmp_path: Path, record: Record) -> Iterator[Server]:
    text = acl_file(record, rank=RANK)
    with running_server(request.param, directory=tmp_path, acl=text, settings=SETTINGS) as started:
        yield started


@pytest.fixture
def real_rank(server: Server, record: Record) -> RankUnderTest:
    return on_server(server, record)

"""Live settings: only what differs is set, and what a server does not take is told."""

import pytest
from rank_under_test import RankUnderTest

from kvtier.store.apply import apply_live_settings
from kvtier.store.fake import FakeServer, FakeStores, Fault
from kvtier.store.protocol import Address, Credentials, StoreUnreachable

AS_STARTED = {
    "maxmemory": "268435456",
    "maxmemory-policy": "ALLKEYS-LRU",
    "client-output-buffer-limit": "normal 256mb 128mb 30",
}


async def test_settings_that_are_as_intended_are_not_touched(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        applied = await apply_live_settings(store, AS_STARTED)
    assert applied.changed == {}
    assert applied.not_applied == {}


async def test_what_differs_is_set_and_read_back(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        intent = AS_STARTED | {"maxmemory": "134217728", "maxclients": "90"}
        applied = await apply_live_settings(store, intent)
        assert applied.changed == {
            "maxmemory": ("268435456", "134217728"),
            "maxclients": ("100", "90"),
        }
        assert applied.not_applied == {}
        assert (await store.config_get("maxmemory"))["maxmemory"] == "134217728"
        assert (await apply_live_settings(store, intent)).changed == {}


async def test_a_refused_setting_does_not_hold_up_the_others(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        applied = await apply_live_settings(
            store, {"tcp-backlog": "32", "maxmemory": "134217728", "no-such-setting": "1"}
        )
        assert applied.changed == {"maxmemory": ("268435456", "134217728")}
        assert set(applied.not_applied) == {"tcp-backlog", "no-such-setting"}
        assert "'64'" in applied.not_applied["tcp-backlog"]
        assert "immutable" in applied.not_applied["tcp-backlog"]
        assert "does not know" in applied.not_applied["no-such-setting"]


ADDRESS = Address("rank", 6379)
OPEN = "user operator on nopass ~* +@all\nuser default off\n"


async def test_nothing_is_written_when_nothing_differs() -> None:
    server = FakeServer(acl_file=OPEN, settings={"maxmemory": "1gb"})
    async with FakeStores({ADDRESS: server}).connect(ADDRESS, Credentials("operator", "x")) as s:
        await apply_live_settings(s, {"maxmemory": str(2**30)})
    assert [call.name for call in server.calls] == ["connect", "config_get"]


async def test_a_rank_that_goes_away_half_way_is_not_taken_for_a_refusal() -> None:
    server = FakeServer(acl_file=OPEN, settings={"maxmemory": "1gb", "maxclients": "10"})
    server.faults.append(Fault("config_set", StoreUnreachable("gone"), after=True))
    async with FakeStores({ADDRESS: server}).connect(ADDRESS, Credentials("operator", "x")) as s:
        with pytest.raises(StoreUnreachable):
            await apply_live_settings(s, {"maxmemory": "2gb", "maxclients": "20"})
    assert server.config["maxmemory"] == str(2**31)

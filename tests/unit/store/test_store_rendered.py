"""The rendered configuration on real servers, and the page that describes it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from rank_under_test import RANK, on_server
from valkey import Valkey
from valkey_servers import BINARIES, running_server

from kvtier.api.types import KVCacheTierSpec
from kvtier.generation.acl import acl_file, key_prefix
from kvtier.generation.record import Record
from kvtier.render import valkey_conf
from kvtier.render.memory import memory
from kvtier.store.apply import apply_live_settings

ROOT = Path(__file__).parents[3]
# The tests' own, so that a server runs beside others on this machine.
OURS = {"bind", "port", "dir", "aclfile"}


def spec(version: str, *, memory_per_rank: str = "1Gi") -> KVCacheTierSpec:
    return KVCacheTierSpec.model_validate(
        {
            "model": {
                "name": "m",
                "revision": "r",
                "kvCacheDtype": "bfloat16",
                "layout": {"gqa": {"layers": 8, "kvHeads": 8, "headDim": 128}},
            },
            "pool": {"ranks": 4, "maxEngines": 2, "prefillRate": [{"tokensPerSecond": 5000}]},
            "store": {"memoryPerRank": memory_per_rank, "version": version},
        }
    )


@pytest.mark.parametrize("version", BINARIES)
async def test_a_rank_starts_as_rendered_and_then_needs_no_setting(
    version: str, tmp_path: Path, record: Record
) -> None:
    rendered = valkey_conf.settings(spec(version))
    conf = {k: v for k, v in (rendered.live | rendered.restart).items() if k not in OURS}
    text = acl_file(record, rank=RANK)
    with running_server(version, directory=tmp_path, acl=text, settings=conf) as server:
        async with on_server(server, record).session() as store:
            applied = await apply_live_settings(store, rendered.live)
            assert (applied.changed, applied.not_applied) == ({}, {})
            larger = valkey_conf.settings(spec(version, memory_per_rank="2Gi"))
            applied = await apply_live_settings(store, larger.live)
            assert "maxmemory" in applied.changed
            assert applied.not_applied == {}


@pytest.mark.parametrize("version", BINARIES)
async def test_every_live_setting_can_be_set_on_a_running_server(
    version: str, tmp_path: Path, record: Record
) -> None:
    rendered = valkey_conf.settings(spec(version))
    with running_server(version, directory=tmp_path, acl=acl_file(record, rank=RANK)) as server:
        async with on_server(server, record).session() as store:
            applied = await apply_live_settings(store, rendered.live)
    assert applied.not_applied == {}
    assert {"maxmemory", "maxmemory-policy", "maxclients"} <= set(applied.changed)


@pytest.mark.parametrize("version", BINARIES)
def test_a_whole_chunk_is_stored_within_the_rendered_limits(
    version: str, tmp_path: Path, record: Record
) -> None:
    rendered = valkey_conf.settings(spec(version))
    conf = {k: v for k, v in (rendered.live | rendered.restart).items() if k not in OURS}
    token, chunk = record.current.token, bytes(memory(spec(version)).chunk_bytes)
    key = f"{key_prefix(record.current.id, RANK)}@chunk"
    text = acl_file(record, rank=RANK)
    with (
        running_server(version, directory=tmp_path, acl=text, settings=conf) as server,
        Valkey(port=server.port, username=token, password=token) as engine,
    ):
        assert engine.set(key, chunk)
        assert engine.get(key) == chunk


def documented() -> dict[str, str]:
    """Setting -> what a change does, from the table of docs/store.md."""
    text = (ROOT / "docs" / "store.md").read_text()
    return dict(re.findall(r"^\| `([a-z-]+)` \|.*\| (live|restart|live on 9\.1) \|", text, re.M))


def test_the_page_names_every_setting_and_what_a_change_does() -> None:
    table: dict[str, dict[str, Any]] = yaml.safe_load(
        (ROOT / "operator/kvtier/render/valkey_settings.yaml").read_text()
    )
    words = {(): "restart", ("9.1",): "live on 9.1", ("8.1", "9.1"): "live"}
    assert documented() == {
        name: "restart" if row.get("restart") == "keep" else words[tuple(row["live"])]
        for name, row in table.items()
    }

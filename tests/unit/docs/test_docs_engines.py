"""The recipes of docs/engines.md do what they say."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import valkey
import yaml

from kvtier.api.load import load_file, parse_tier
from kvtier.api.types import KVCacheTier
from kvtier.generation.acl import acl_file
from kvtier.generation.record import Record, new_record
from kvtier.render.engine import engine_files
from kvtier.render.mount import Mount

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "engines.md"
sys.path.insert(0, str(ROOT / "tests" / "unit" / "store"))

from valkey_servers import running_server  # noqa: E402


def block(language: str, holding: str) -> str:
    text = PAGE.read_text("utf-8")
    (found,) = [
        each for each in re.findall(rf"```{language}\n(.*?)```", text, re.S) if holding in each
    ]
    return str(found)


def record_of(tier: KVCacheTier) -> Record:
    return new_record(
        tier.spec,
        operator_token="kvtt-0f0f0f0f",
        engine_token="kvtt-1e1e1e1e",
        probe_token="kvtt-3c3c3c3c",
        limiter_token="kvtt-4d4d4d4d",
    )


def test_lmcaches_operator_is_given_what_the_secret_says() -> None:
    engine = yaml.safe_load(block("yaml", "LMCacheEngine"))["spec"]
    tier = load_file(str(ROOT / "deploy" / "samples" / "smallest.yaml"))
    files = engine_files(tier, record_of(tier))
    raw = engine["l2Backend"]["raw"]
    assert {"type": raw["type"], **raw["config"]} == json.loads(files["l2-adapter.json"])
    arguments = files["server-args"]
    assert f"--l1-size-gb {engine['l1']['sizeGB']} " in arguments
    assert f"--chunk-size {engine['server']['chunkSize']} " in arguments
    assert f"--hash-algorithm {engine['server']['hashAlgorithm']} " in arguments
    assert f"--l2-prefetch-policy {engine['l2Backend']['prefetchPolicy']} " in arguments
    env = {each["name"]: each["value"] for each in engine["env"]}
    assert f"PYTHONPATH={env['PYTHONPATH']}$" in files["env"]
    assert f"PYTHONHASHSEED={env['PYTHONHASHSEED']}\n" in files["env"]


def test_another_client_stores_and_loads_by_the_recipe(tmp_path: Path) -> None:
    document: dict[str, Any] = yaml.safe_load(
        (ROOT / "deploy" / "samples" / "smallest.yaml").read_text()
    )
    document["spec"]["pool"] |= {"ranks": 1, "engine": {"connector": "Generic"}}
    tier = parse_tier(document)
    record = record_of(tier)
    with running_server("9.1", directory=tmp_path, acl=acl_file(record, rank=0)) as server:
        mount = Mount(directory=str(tmp_path), addresses=(("127.0.0.1", server.port),))
        for name, text in engine_files(tier, record, mount=mount).items():
            (tmp_path / name).write_text(text)
        found: dict[str, Any] = {}
        exec(block("python", "import valkey").replace("/kvtier", str(tmp_path)), found)
        try:
            assert found["load"](b"\1" * 32) is None
            found["store"](b"\1" * 32, b"kv")
            assert found["load"](b"\1" * 32) == b"kv"
            with pytest.raises(valkey.exceptions.NoPermissionError):
                found["clients"][0].set("another-prefix@a", "kv")
        finally:
            for each in found["clients"]:
                each.close()

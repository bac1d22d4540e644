"""The sample engines without what kvtier adds: injected, they run what the samples run."""

import copy
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from injection_pods import METADATA, injected, patched

from kvtier.api.load import parse_tier
from kvtier.generation.identity import generation_id
from kvtier.generation.record import new_record
from kvtier.render.engine import engine_files

SAMPLES = Path(__file__).parents[3] / "deploy/samples/engines"
ADDED = [
    "set -a; . /kvtier/env; ",
    "unset SSL_CERT_FILE; ",
    ' --kv-transfer-config "$(cat /kvtier/kv-transfer-config.json)"',
    " $(cat /kvtier/server-args)",
    ' --l2-adapter "$(cat /kvtier/l2-adapter.json)"',
]


def tier() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((SAMPLES / "tier-hash.yaml").read_text())
    document["metadata"] |= METADATA | {"namespace": "serving"}
    live = {"id": generation_id(parse_tier(document).spec), "state": "Live"}
    return document | {"status": {"observedGeneration": 1, "generations": [live]}}


def templates() -> Iterator[Any]:
    for name in ("vllm-hash", "leaderworkerset"):
        for document in yaml.safe_load_all((SAMPLES / f"{name}.yaml").read_text()):
            spec = document["spec"]
            if document["kind"] == "LeaderWorkerSet":
                for part in ("leaderTemplate", "workerTemplate"):
                    yield pytest.param(spec["leaderWorkerTemplate"][part], id=part)
            else:
                yield pytest.param(spec["template"], id=name)


def bare(template: dict[str, Any]) -> dict[str, Any]:
    """A pod of the sample as somebody writes it who leaves the rest to injection."""
    made = copy.deepcopy(template)
    made["metadata"]["annotations"] = {"kvtier.dev/inject": "true"}
    spec = made["spec"]
    spec["volumes"] = [each for each in spec["volumes"] if each["name"] != "kvtier"]
    for each in (*spec["initContainers"], *spec["containers"]):
        each["volumeMounts"] = [it for it in each["volumeMounts"] if it["name"] != "kvtier"]
        for text in ADDED:
            each["args"][0] = each["args"][0].replace(text, "")
        # The samples leave the dtype to the model.
        each["args"][0] = each["args"][0].replace(
            "--tensor-parallel-size", "--kv-cache-dtype bfloat16 --tensor-parallel-size"
        )
    assert "/kvtier" not in json.dumps(spec)
    return made


def words(script: str, program: str, home: Path) -> list[str]:
    """The arguments that a real shell hands to the program at the script's end."""
    stand_in = home / program
    stand_in.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    stand_in.chmod(0o755)
    environment = {"PATH": f"{home}:/usr/bin:/bin", "LWS_GROUP_SIZE": "2"}
    done = subprocess.run(
        ["sh", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("template", list(templates()))
def test_a_sample_gets_by_injection_what_it_reads_from_the_secret(
    template: dict[str, Any], tmp_path: Path
) -> None:
    document, made = tier(), bare(template)
    after = patched(made, injected(made, document))["spec"]
    parsed = parse_tier(document)
    record = new_record(
        parsed.spec, operator_token="token-of-kvtier", engine_token="token-of-engines"
    )
    published = engine_files(parsed, record)
    (engine,), (server,) = after["containers"], after["initContainers"]
    *_, flag, config = words(engine["args"][0], "vllm", tmp_path)
    assert flag == "--kv-transfer-config"
    assert json.loads(config) == json.loads(published["kv-transfer-config.json"])
    first, *arguments, flag, adapter = words(server["args"][0], "lmcache", tmp_path)
    assert (first, flag) == ("server", "--l2-adapter")
    assert arguments == published["server-args"].split()
    assert json.loads(adapter) == json.loads(published["l2-adapter.json"])
    (volume,) = (each for each in after["volumes"] if each["name"] == "kvtier")
    assert volume["secret"]["secretName"] == f"deepseek-engine-{record.current_id}"

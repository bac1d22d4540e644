"""settings_facts.yaml is what the servers do. Rendering and the docs rest on it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from valkey import ResponseError, Valkey
from valkey_servers import BINARIES, DidNotStart, running_server

FACTS: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "settings_facts.yaml").read_text()
)
OPEN_ACL = "user default on nopass ~* &* +@all\n"


def in_file(version: str) -> dict[str, str]:
    return {name: fact["value"] for name, fact in FACTS.items() if version in fact["file"]}


def config_get(client: Valkey, name: str) -> str | None:
    reply = client.execute_command("CONFIG GET", name)
    return reply[1] if reply else None


@pytest.mark.parametrize("version", BINARIES)
def test_a_server_starts_with_every_setting_that_it_is_said_to_take(
    version: str, tmp_path: Path
) -> None:
    with (
        running_server(version, directory=tmp_path, acl=OPEN_ACL, settings=in_file(version)) as s,
        Valkey(port=s.port, decode_responses=True) as client,
    ):
        client.response_callbacks.clear()
        for name, fact in FACTS.items():
            assert (config_get(client, name) is not None) == (version in fact["get"]), name


@pytest.mark.parametrize(
    ("version", "name"),
    [(v, name) for v in BINARIES for name, fact in FACTS.items() if v not in fact["file"]],
)
def test_a_server_does_not_start_with_a_setting_that_it_is_said_to_lack(
    version: str, name: str, tmp_path: Path
) -> None:
    settings = {name: FACTS[name]["value"]}
    with (
        pytest.raises(DidNotStart, match="FATAL CONFIG FILE ERROR"),
        running_server(version, directory=tmp_path, acl=OPEN_ACL, settings=settings),
    ):
        pass


@pytest.mark.parametrize("version", BINARIES)
def test_settings_change_on_a_running_server_where_they_are_said_to(
    version: str, tmp_path: Path
) -> None:
    with (
        running_server(version, directory=tmp_path, acl=OPEN_ACL, settings=in_file(version)) as s,
        Valkey(port=s.port, decode_responses=True) as client,
    ):
        client.response_callbacks.clear()
        for name, fact in FACTS.items():
            if "other" not in fact:
                continue
            if version in fact["live"]:
                client.execute_command("CONFIG SET", name, fact["other"])
                expected = fact.get("readback", fact["other"])
                assert config_get(client, name) == expected, name
            else:
                with pytest.raises(ResponseError, match=r"immutable|Unknown option"):
                    client.execute_command("CONFIG SET", name, fact["other"])

"""What the users of a running rank may do: on the wire, with the tokens that were published."""

from pathlib import Path

import pytest
import yaml
from valkey.exceptions import AuthenticationError, NoPermissionError, ResponseError

from livecluster.fixtures import NewTier
from livecluster.ranks import Engine

TABLE = yaml.safe_load((Path(__file__).parent / "engine_commands.yaml").read_text())
RANK = 1


@pytest.fixture(scope="module")
def engine(module_tiers: NewTier) -> Engine:
    tier = module_tiers("chat")
    tier.apply()
    tier.wait_ready()
    return tier.engine()


@pytest.fixture
def words(engine: Engine) -> dict[str, str]:
    """What stands in the table for a key of the engine's own, another rank's, and so on."""
    own, other = engine.prefix(RANK), engine.prefix(0)
    generation = engine.connection["generation"]
    with engine.session(RANK) as client:
        client.set(f"{own}@present", b"value")
    return {
        "KEY": f"{own}@present",
        "ABSENT": f"{own}@absent",
        "OTHER_RANK": f"{other}@present",
        "OTHER_GENERATION": f"kvt-{'0' * 12}-r{RANK}@present",
        "LONGER_RANK": f"kvt-{generation}-r{RANK}0@present",
        "BARE_PREFIX": own,
        "TOKEN": engine.token,
    }


def filled(command: str, words: dict[str, str]) -> list[str]:
    return [words.get(word, word) for word in command.split()]


@pytest.mark.parametrize("command", TABLE["allowed"])
def test_an_engine_may(command: str, engine: Engine, words: dict[str, str]) -> None:
    with engine.session(RANK) as client:
        client.execute_command(*filled(command, words))


@pytest.mark.parametrize("command", TABLE["refused"])
def test_an_engine_may_not(command: str, engine: Engine, words: dict[str, str]) -> None:
    with engine.session(RANK) as client, pytest.raises(NoPermissionError):
        client.execute_command(*filled(command, words))
    # Whatever was refused left the rank as it was.
    with engine.session(RANK) as client:
        assert client.get(words["KEY"]) == b"value"


def test_an_engine_that_was_given_another_ranks_address_misses_and_cannot_store(
    engine: Engine,
) -> None:
    with engine.session(0) as client:
        client.set(engine.key(0, 1), b"heads of rank 0")
    # The address of rank 0 with rank 1's prefix: what a swapped pair of addresses does.
    with engine.session(0) as client, pytest.raises(NoPermissionError):
        client.get(engine.key(1, 1))
    with engine.session(0) as client, pytest.raises(NoPermissionError):
        client.set(engine.key(1, 1), b"heads of rank 1")


def test_nobody_gets_in_without_the_token(engine: Engine) -> None:
    strangers = [(None, None), ("default", "x"), ("default", ""), (engine.token, "x"), ("x", "x")]
    for username, password in strangers:
        with (
            engine.connect(RANK, username=username, password=password) as client,
            pytest.raises((AuthenticationError, ResponseError)) as refusal,
        ):
            client.ping()
        assert any(word in str(refusal.value) for word in ("required", "WRONGPASS", "invalid")), (
            f"{username}: {refusal.value}"
        )


@pytest.mark.parametrize("command", ["DBSIZE", "INFO", "GET x", "ACL WHOAMI", "CONFIG GET *"])
def test_the_probes_user_may_ping_and_nothing_else(command: str, engine: Engine) -> None:
    with engine.connect(RANK, username="health", password="any word") as client:
        assert client.execute_command("PING")
        with pytest.raises(NoPermissionError):
            client.execute_command(*command.split())

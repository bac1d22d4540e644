"""What the users of the rendered ACL file can do on real servers, command by command."""

import subprocess
from collections.abc import Iterator

import pytest
from rank_under_test import RANK, RankUnderTest
from valkey import Valkey
from valkey.exceptions import AuthenticationError, NoPermissionError, ValkeyError
from valkey_servers import CLI

from kvtier.generation.acl import key_prefix, probe_prefix


@pytest.fixture
def engine(real_rank: RankUnderTest) -> Iterator[Valkey]:
    token = real_rank.engine
    with Valkey(port=real_rank.address.port, username=token, password=token) as client:
        yield client


@pytest.fixture
def operator(real_rank: RankUnderTest) -> Iterator[Valkey]:
    password = real_rank.record.operator_token
    with Valkey(port=real_rank.address.port, username="operator", password=password) as client:
        yield client


def test_an_engine_stores_and_loads_under_its_prefix(
    engine: Valkey, real_rank: RankUnderTest
) -> None:
    key, value = f"{real_rank.prefix}@model@08000800@0@abc", bytes(range(256)) * 4096
    assert engine.exists(key) == 0
    assert engine.set(key, value)
    assert engine.exists(key) == 1
    assert engine.get(key) == value


def test_an_engine_connects_the_way_its_clients_do(
    engine: Valkey, real_rank: RankUnderTest
) -> None:
    token = real_rank.engine
    assert engine.execute_command("HELLO", "2", "AUTH", token, token, "SETNAME", "lmcache")
    assert engine.execute_command("CLIENT SETINFO", "LIB-NAME", "glide")
    assert engine.execute_command("CLIENT SETNAME", "lmcache")
    assert engine.execute_command("PING")
    assert engine.execute_command("INFO", "server")


def outside(prefix: str) -> list[str]:
    generation = prefix.split("-")[1]
    return [
        f"{key_prefix(generation, RANK + 1)}@x",
        f"{key_prefix('0' * 12, RANK)}@x",
        f"{prefix}0@x",
        f"{prefix}",
        f"x{prefix}@x",
        "*",
        "",
    ]


@pytest.mark.parametrize("command", ["GET", "EXISTS", "SET"])
def test_an_engine_reaches_no_key_of_another_rank_or_generation(
    command: str, engine: Valkey, real_rank: RankUnderTest
) -> None:
    for key in outside(real_rank.prefix):
        with pytest.raises(NoPermissionError):
            engine.execute_command(command, key, *(["v"] if command == "SET" else []))


def all_commands(operator: Valkey) -> list[str]:
    """Every command and subcommand of the server, ``config|get`` and the like in one word."""
    # The operator may not run COMMAND; an ACL category listing names all of them.
    password = operator.connection_pool.connection_kwargs["password"]
    operator.execute_command("ACL SETUSER", "lister", "on", f">{password}", "+command", "+acl|cat")
    pool = operator.connection_pool.connection_kwargs
    with Valkey(port=pool["port"], username="lister", password=password) as lister:
        lister.response_callbacks.clear()
        names = [name.decode() for name in lister.execute_command("COMMAND LIST")]
        for entry in lister.execute_command("COMMAND INFO", *names):
            names += [sub[0].decode() for sub in entry[9]] if entry and len(entry) > 9 else []
    operator.execute_command("ACL DELUSER", "lister")
    return sorted(set(names))


def allowed(operator: Valkey, user: str, *, key: str) -> set[str]:
    """Commands that ACL DRYRUN lets the user run, each tried with up to twelve arguments."""
    permitted = set()
    for name in all_commands(operator):
        for count in range(12):
            arguments = [key] * count
            try:
                reply = operator.execute_command("ACL DRYRUN", user, *name.split("|"), *arguments)
            except ValkeyError:
                continue  # Not a number of arguments that this command takes.
            if reply == b"OK":
                permitted.add(name)
                break
    return permitted


# A session that has not logged in yet may run these, so no rule can take them away.
BEFORE_LOGIN = {"auth", "hello", "quit", "reset"}


def test_an_engine_may_run_exactly_the_commands_that_engines_use(
    operator: Valkey, real_rank: RankUnderTest
) -> None:
    permitted = allowed(operator, real_rank.engine, key=f"{real_rank.prefix}@x")
    expected = {"get", "set", "exists", "ping", "info", "client|setinfo", "client|setname"}
    assert permitted - BEFORE_LOGIN == expected


def test_a_probe_may_store_read_and_take_away_its_own_and_nothing_else(
    operator: Valkey, real_rank: RankUnderTest
) -> None:
    permitted = allowed(operator, "probe", key=f"{probe_prefix(RANK)}@x")
    assert permitted - BEFORE_LOGIN == {"ping", "info", "get", "set", "unlink"}
    others = (*outside(real_rank.prefix), f"{real_rank.prefix}@x", f"{probe_prefix(RANK + 1)}@x")
    token = real_rank.record.probe_token
    with Valkey(port=real_rank.address.port, username="probe", password=token) as probe:
        for key in others:
            for command in ("GET", "SET", "UNLINK"):
                with pytest.raises(NoPermissionError):
                    probe.execute_command(command, key, *(["v"] if command == "SET" else []))


def test_a_limiter_may_look_and_reaches_no_key(operator: Valkey, real_rank: RankUnderTest) -> None:
    permitted = allowed(operator, "limiter", key=f"{real_rank.prefix}@x")
    assert permitted - BEFORE_LOGIN == {"ping", "info", "client|setinfo", "client|setname"}
    token = real_rank.record.limiter_token
    with Valkey(port=real_rank.address.port, username="limiter", password=token) as limiter:
        assert limiter.info("server")["run_id"]
        with pytest.raises(NoPermissionError):
            limiter.execute_command("GET", f"{real_rank.prefix}@x")


def test_health_may_only_ping(operator: Valkey) -> None:
    assert allowed(operator, "health", key="x") - BEFORE_LOGIN == {"ping"}


def test_default_may_do_nothing_and_cannot_log_in(
    operator: Valkey, real_rank: RankUnderTest
) -> None:
    assert allowed(operator, "default", key="x") <= BEFORE_LOGIN
    with Valkey(port=real_rank.address.port) as nobody, pytest.raises(AuthenticationError):
        nobody.ping()


def test_the_operator_may_run_what_fencing_and_purging_need_and_read_no_value(
    operator: Valkey,
) -> None:
    permitted = allowed(operator, "operator", key="x") - BEFORE_LOGIN
    assert permitted == {
        *("acl|setuser", "acl|deluser", "acl|dryrun", "acl|load", "acl|getuser", "acl|list"),
        *("acl|users", "client|kill", "client|list", "client|setinfo", "client|setname"),
        *("multi", "exec", "config|get", "config|set", "info", "dbsize", "ping"),
        *("scan", "unlink", "flushdb"),
    }


@pytest.mark.parametrize(
    ("arguments", "returncode", "output"),
    [
        (["-e", "--no-auth-warning", "--user", "health", "--pass", "x", "ping"], 0, "PONG"),
        (["-e", "--no-auth-warning", "--user", "health", "--pass", "x", "dbsize"], 1, "NOPERM"),
        (["-e", "ping"], 1, "NOAUTH"),
    ],
)
def test_the_readiness_probe_passes_without_a_secret_and_shows_nothing_more(
    arguments: list[str], returncode: int, output: str, real_rank: RankUnderTest
) -> None:
    run = subprocess.run(
        [str(CLI), "-p", str(real_rank.address.port), *arguments],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    assert run.returncode == returncode
    assert output in run.stdout + run.stderr

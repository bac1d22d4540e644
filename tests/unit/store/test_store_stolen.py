"""What somebody can do to a rank who has no token, or one that he should not have.

These are limits, not features: SECURITY.md tells of them, and a change here is a change there.
"""

from contextlib import ExitStack

import pytest
from rank_under_test import RANK, SETTINGS, RankUnderTest
from valkey import Valkey
from valkey.exceptions import ConnectionError as Refused
from valkey.exceptions import NoPermissionError, ResponseError

from kvtier.generation.acl import acl_file


def as_user(rank: RankUnderTest, name: str | None, password: str | None) -> Valkey:
    return Valkey(
        port=rank.address.port,
        username=name,
        password=password,
        socket_timeout=5,
        single_connection_client=True,
    )


def operator(rank: RankUnderTest) -> Valkey:
    return as_user(rank, "operator", rank.record.operator_token)


def test_without_a_token_one_can_take_up_all_connections_of_a_rank(
    real_rank: RankUnderTest,
) -> None:
    """Why ranks belong behind network policies."""
    with ExitStack() as held:
        for _ in range(int(SETTINGS["maxclients"])):
            stranger = held.enter_context(as_user(real_rank, "health", "any word"))
            try:
                stranger.ping()
            except Refused:
                break
        with pytest.raises(Refused, match="max number of clients"):
            as_user(real_rank, real_rank.engine, real_rank.engine).ping()
    assert operator(real_rank).dbsize() == 0


def test_the_operators_token_reads_no_value_but_can_make_a_user_that_does(
    real_rank: RankUnderTest,
) -> None:
    key = f"{real_rank.prefix}@model@01000100@0@abc"
    as_user(real_rank, real_rank.engine, real_rank.engine).set(key, b"kv")
    thief = operator(real_rank)
    with pytest.raises(NoPermissionError):
        thief.get(key)
    thief.execute_command("ACL", "SETUSER", "thief", "on", ">x", "~*", "+@all")
    assert as_user(real_rank, "thief", "x").get(key) == b"kv"


@pytest.mark.parametrize("setting", ["dir", "dbfilename", "aclfile", "enable-debug-command"])
def test_the_operators_token_does_not_lead_out_of_the_server(
    setting: str, real_rank: RankUnderTest
) -> None:
    with pytest.raises(ResponseError, match=r"immutable|protected"):
        operator(real_rank).config_set(setting, "/tmp")


def test_the_file_that_a_rank_mounts_has_the_engines_token_and_not_the_operators(
    real_rank: RankUnderTest,
) -> None:
    file = acl_file(real_rank.record, rank=RANK)
    assert real_rank.engine in file
    assert real_rank.record.operator_token not in file

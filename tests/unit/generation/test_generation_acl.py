"""The ACL file's text. What its users can do on real servers is tested with the store."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from kvtier.generation.acl import acl_file, acl_revision, key_prefix, users
from kvtier.generation.record import Record, new_record

OPERATOR, ENGINE, PROBE = "kvtt-0f0f0f0f", "kvtt-1e1e1e1e", "kvtt-3c3c3c3c"
LIMITER = "kvtt-4d4d4d4d"


@pytest.fixture
def record(make_spec: Any) -> Record:
    return new_record(make_spec(), operator_token=OPERATOR, engine_token=ENGINE, probe_token=PROBE)


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def lines(record: Record, rank: int) -> dict[str, list[str]]:
    return {line.split()[1]: line.split()[2:] for line in acl_file(record, rank=rank).splitlines()}


def test_an_engine_may_do_what_engines_do_on_its_own_rank(record: Record) -> None:
    generation = record.current.id
    assert lines(record, 3)[ENGINE] == [
        *("reset", "on", f"#{digest(ENGINE)}", f"~kvt-{generation}-r3@*"),
        *("+get", "+set", "+exists"),
        *("+hello", "+auth", "+ping", "+info", "+client|setinfo", "+client|setname"),
    ]


def test_a_probe_has_a_few_keys_of_its_own_and_no_engine_s(record: Record) -> None:
    assert lines(record, 3)["probe"] == [
        *("reset", "on", f"#{digest(PROBE)}", "~kvt-probe-r3@*"),
        *("+ping", "+info", "+get", "+set", "+unlink"),
    ]


def test_a_limiter_may_look_at_a_rank_and_reaches_no_key(record: Record) -> None:
    with_limiter = replace(record, limiter_token=LIMITER)
    assert lines(with_limiter, 3)["limiter"] == [
        *("reset", "on", f"#{digest(LIMITER)}"),
        *("+hello", "+auth", "+ping", "+info", "+client|setinfo", "+client|setname"),
    ]
    assert acl_revision(with_limiter, rank=3) != acl_revision(record, rank=3)


def test_a_record_from_before_the_probe_has_the_users_that_it_had(make_spec: Any) -> None:
    before = new_record(make_spec(), operator_token=OPERATOR, engine_token=ENGINE)
    assert set(users(before, rank=0)) == {"default", "health", "operator", ENGINE}


def test_default_is_off_and_health_needs_no_secret(record: Record) -> None:
    assert lines(record, 0)["default"] == ["reset"]
    assert lines(record, 0)["health"] == ["reset", "on", "nopass", "+ping"]


def test_the_revision_is_the_hash_of_the_users(record: Record) -> None:
    text = acl_file(record, rank=0)
    body, _, last = text.rpartition("user _rev")
    assert last.split() == ["reset", f"#{digest(body)}"]
    assert acl_revision(record, rank=0) == digest(body)


def test_the_revision_differs_by_rank_and_by_token(record: Record, make_spec: Any) -> None:
    other = new_record(make_spec(), operator_token=OPERATOR, engine_token="kvtt-2d2d2d2d")
    revisions = {acl_revision(each, rank=rank) for each in (record, other) for rank in range(8)}
    assert len(revisions) == 16


def test_no_password_stands_in_the_file(record: Record) -> None:
    text = acl_file(record, rank=0)
    assert OPERATOR not in text
    assert PROBE not in text
    # The engine's user is named as its token, and nothing else holds it.
    assert text.count(ENGINE) == 1


def test_the_file_and_the_commands_say_the_same(record: Record) -> None:
    in_file = lines(record, 5)
    del in_file["_rev"]
    assert in_file == {name: list(rules) for name, rules in users(record, rank=5).items()}
    assert all(rules[0] == "reset" for rules in in_file.values())


def test_a_prefix_holds_no_at_sign_and_no_pattern() -> None:
    assert key_prefix("0123456789ab", 12) == "kvt-0123456789ab-r12"

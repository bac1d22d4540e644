"""The record: written, read back, and refused when it cannot be trusted."""

import json
from dataclasses import replace
from typing import Any

import pytest

from kvtier.generation.record import InvalidRecord, Record, from_json, new_record, to_json
from kvtier.placement.domain import Domain

OPERATOR, ENGINE = "kvtt-0f0f0f0f", "kvtt-1e1e1e1e"


@pytest.fixture
def record(make_spec: Any) -> Record:
    return new_record(make_spec(), operator_token=OPERATOR, engine_token=ENGINE)


def test_what_is_written_is_read_back(record: Record) -> None:
    assert from_json(to_json(record)) == record
    assert to_json(from_json(to_json(record))) == to_json(record)


@pytest.mark.parametrize("whose", ["probe", "limiter"])
def test_a_probe_s_and_a_limiter_s_token_are_read_back_and_not_shown(
    whose: str, record: Record
) -> None:
    with_token = from_json(damaged(record, **{f"{whose}Token": "kvtt-3c3c3c3c"}))
    assert getattr(with_token, f"{whose}_token") == "kvtt-3c3c3c3c"
    assert from_json(to_json(with_token)) == with_token
    assert "3c3c3c3c" not in repr(with_token)
    assert f"{whose}Token" not in to_json(record), "a record from before stays as it is"


@pytest.mark.parametrize("whose", ["probe", "limiter"])
@pytest.mark.parametrize("token", ["", 7, "short", "has a space", "probe"])
def test_a_token_that_is_none_is_refused(token: object, whose: str, record: Record) -> None:
    with pytest.raises(InvalidRecord, match=f"{whose} token"):
        from_json(damaged(record, **{f"{whose}Token": token}))


def test_a_new_record_has_one_live_generation(record: Record, make_spec: Any) -> None:
    assert [entry.state for entry in record.generations] == ["Live"]
    assert record.current.token == ENGINE
    assert record.identity_version == 1
    assert record.current.identity["modelName"] == make_spec().model.name


def test_the_domain_is_kept_with_the_record_and_none_adds_nothing_to_it(record: Record) -> None:
    assert "domain" not in to_json(record)
    placed = replace(record, domain=Domain("leaf", "example.com/leaf", "leaf-a"))
    assert from_json(to_json(placed)) == placed


@pytest.mark.parametrize(
    "domain", [None, "leaf-a", [], {}, {"level": "leaf", "key": "k"}, {"level": 1, "key": 2}]
)
def test_a_domain_that_cannot_be_read_is_chosen_again_and_locks_nobody_out(
    record: Record, domain: Any
) -> None:
    assert from_json(damaged(record, domain=domain)) == record


def test_a_record_in_a_log_shows_no_token(record: Record) -> None:
    assert OPERATOR not in repr(record)
    assert ENGINE not in repr(record)
    assert record.current.id in repr(record)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "short",
        "with space8",
        "new\nline88",
        "-leading8",
        "hash#hash8",
        "ünïcödé8",
        "a" * 129,
        "operator",
        "a|b|c|d|e",
    ],
)
def test_a_token_that_an_acl_file_cannot_hold_is_refused(token: str, make_spec: Any) -> None:
    for tokens in ((token, ENGINE), (OPERATOR, token)):
        with pytest.raises(InvalidRecord, match="token must be 8 to 128") as error:
            new_record(make_spec(), operator_token=tokens[0], engine_token=tokens[1])
        assert len(token) < 6 or token not in str(error.value) or token == "operator"


def damaged(record: Record, **changes: Any) -> str:
    return json.dumps(json.loads(to_json(record)) | changes)


def damaged_entry(record: Record, **changes: Any) -> str:
    entry = json.loads(to_json(record))["generations"][0] | changes
    return damaged(record, generations=[entry])


def test_a_state_that_may_be_a_fence_is_not_taken_for_leave_to_read(record: Record) -> None:
    with pytest.raises(InvalidRecord, match="a state that this release lacks"):
        from_json(damaged_entry(record, state="Quarantined"))


def test_an_id_that_is_not_its_identitys_is_refused(record: Record) -> None:
    with pytest.raises(InvalidRecord, match="id is not that of its identity"):
        from_json(damaged_entry(record, id="000000000000"))


def test_two_generations_with_one_token_are_refused(record: Record, make_spec: Any) -> None:
    other = new_record(
        make_spec({"model.revision": "b"}), operator_token=OPERATOR, engine_token=ENGINE
    )
    both = [json.loads(to_json(each))["generations"][0] for each in (record, other)]
    with pytest.raises(InvalidRecord, match="2 Live generations"):
        from_json(damaged(record, generations=both))


def test_a_record_without_a_live_generation_is_refused(record: Record) -> None:
    with pytest.raises(InvalidRecord, match="0 Live generations"):
        from_json(damaged(record, generations=[]))


def test_a_later_identity_version_in_a_record_is_refused(record: Record) -> None:
    with pytest.raises(InvalidRecord, match="identity version 2; this release knows 1"):
        from_json(damaged(record, identityVersion=2))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "7",
        '"x"',
        "{",
        b"\xff\xfe",
        "[" * 100_000,
        '{"identityVersion": true, "operatorToken": "kvtt-0f0f0f0f", "generations": []}',
        '{"identityVersion": 1, "operatorToken": "kvtt-0f0f0f0f", "generations": 7}',
        '{"identityVersion": 1, "operatorToken": "kvtt-0f0f0f0f", "generations": [7]}',
        '{"identityVersion": 1, "operatorToken": "kvtt-0f0f0f0f", "generations": [{"state": []}]}',
    ],
)
def test_anything_else_is_refused_without_showing_it(text: str | bytes) -> None:
    with pytest.raises(InvalidRecord) as error:
        from_json(text)
    assert "0f0f0f0f" not in str(error.value)

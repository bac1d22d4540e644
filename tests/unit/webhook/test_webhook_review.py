"""The envelope: what is taken for a review, and the form and size of an answer."""

import copy
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webhook_reviews import review, tier

from kvtier.redact import new_token
from kvtier.webhook.review import (
    MAX_LINES,
    MAX_REFUSAL,
    MAX_VALUES,
    MAX_WARNINGS,
    BadReview,
    Decision,
    Request,
    answer,
    bounded,
    parse,
)

REQUEST = Request(uid="u", operation="CREATE")


def changed(path: str, value: Any) -> bytes:
    document = copy.deepcopy(review(tier()))
    *above, last = path.split(".")
    here = document
    for name in above:
        here = here[name]
    here[last] = value
    return json.dumps(document).encode()


def complaint(body: bytes) -> str:
    with pytest.raises(BadReview) as refused:
        parse(body)
    text = str(refused.value)
    assert "\n" not in text
    assert len(text) < 400
    return text


def test_a_review_is_read() -> None:
    document = review(tier(), old=tier(), operation="UPDATE", subResource="status")
    assert parse(json.dumps(document).encode()) == Request(
        uid=document["request"]["uid"],
        operation="UPDATE",
        subresource="status",
        object=tier(),
        old_object=tier(),
    )


@pytest.mark.parametrize(
    "junk", [b"", b"{", b"\xff\xfe", b"[]", b"7", b"null", b'"x"', b"[" * 200_000, b"{}"]
)
def test_junk_is_one_line(junk: bytes) -> None:
    complaint(junk)


@pytest.mark.parametrize("element", [b"[],", b'{"a":1},', b"1,", b'{"a":[1]},'])
def test_many_small_values_are_refused_before_they_take_memory(element: bytes) -> None:
    many = b"[" + element * (MAX_VALUES + 1) + b"1]"
    tracemalloc.start()
    try:
        said = complaint(many)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "values" in said
    assert peak < 2**20


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("apiVersion", "admission.k8s.io/v1beta1", "apiVersion"),
        ("apiVersion", {"a\n": 1}, "apiVersion"),
        ("kind", "Pod", "kind"),
        ("request", None, "request"),
        ("request", [], "request"),
        ("request.uid", None, "request.uid"),
        ("request.uid", "", "request.uid"),
        ("request.uid", "x" * 129, "request.uid"),
        ("request.uid", 7, "request.uid"),
        ("request.operation", [], "request.operation"),
        ("request.subResource", 1, "request.subResource"),
        ("request.object", "x", "request.object"),
        ("request.oldObject", [1], "request.oldObject"),
        ("request.resource", None, "request.resource"),
        ("request.resource", {"group": "", "version": "v1", "resource": "pods"}, "pods"),
        ("request.resource.version", "v1beta1", "v1beta1"),
    ],
)
def test_what_is_no_review_of_a_tier_is_named(path: str, value: Any, field: str) -> None:
    assert field in complaint(changed(path, value))


def test_a_yes_says_no_more_than_yes() -> None:
    assert answer(REQUEST, Decision()) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "u", "allowed": True},
    }


def test_a_no_has_every_line_and_the_warnings_too() -> None:
    response = answer(REQUEST, Decision(refusals=("a: b", "c: d"), warnings=("e", "f")))["response"]
    assert response == {
        "uid": "u",
        "allowed": False,
        "status": {"code": 422, "reason": "Invalid", "message": "a: b; c: d"},
        "warnings": ["e", "f"],
    }


def test_what_fits_is_left_as_it_is() -> None:
    lines = [f"{number}: {'x' * 150}" for number in range(MAX_LINES)]
    assert bounded(lines, characters=MAX_WARNINGS) == lines


def test_what_does_not_fit_is_counted() -> None:
    assert bounded(["x" * 60] * 40, characters=4096)[-1].startswith(f"{40 - MAX_LINES + 1} more")
    first, rest = bounded(["x" * 5000, "y"], characters=MAX_WARNINGS)
    assert MAX_WARNINGS - 64 <= len(first) + len(rest) <= MAX_WARNINGS
    assert first.endswith("x…")
    assert rest.startswith("1 more")


@given(st.lists(st.text(max_size=3000), max_size=40), st.sampled_from([MAX_REFUSAL, MAX_WARNINGS]))
def test_an_answer_is_bounded_and_has_one_line_each(lines: list[str], characters: int) -> None:
    found = bounded(lines, characters=characters)
    assert len(found) <= MAX_LINES
    assert sum(map(len, found)) <= characters
    assert all(text.isprintable() for text in found)
    assert bool(found) == bool(lines)


def test_a_token_in_a_field_is_not_repeated() -> None:
    token = new_token()
    assert token not in json.dumps(answer(REQUEST, Decision(refusals=(f"spec.x: {token}",))))

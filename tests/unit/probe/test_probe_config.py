"""What a probe may take, and what it refuses to start with."""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.api.base import MAX_RANKS
from kvtier.probe.config import (
    LEAST_VALUES,
    MOST_RANKS,
    MOST_VALUES,
    BadConfig,
    ProbeConfig,
    document,
    parse,
    values_to_store,
)
from kvtier.store.address import RankAddress

MIB = 1 << 20
CONFIG = ProbeConfig(
    ranks=tuple(
        RankAddress(rank=n, host=f"chat-r{n}.models.svc", port=6379, prefix=f"kvt-probe-r{n}")
        for n in range(4)
    ),
    value_bytes=MIB,
    max_bytes=1 << 30,
    seconds=2.0,
    username="probe",
    password="kvtt-aa",
)


def test_a_configuration_comes_back_as_it_was_written_without_its_token() -> None:
    text = json.dumps(document(CONFIG))
    assert "kvtt-aa" not in text
    assert parse(text, token="kvtt-aa\n", ca=None) == CONFIG
    secure = replace(CONFIG, ca="PEM", node="gpu-1")
    assert parse(json.dumps(document(secure)), token="kvtt-aa", ca="PEM", node="gpu-1") == secure


def test_as_many_ranks_are_probed_as_a_tier_may_have() -> None:
    assert MOST_RANKS == MAX_RANKS


def test_a_rank_s_process_starts_without_the_api_s_models() -> None:
    program = "import sys, kvtier.probe.rank; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"False\n"


def test_no_secret_is_in_what_is_printed_of_it() -> None:
    assert "kvtt-aa" not in repr(replace(CONFIG, ca="SECRET-CA"))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"ranks": ()}, "ranks"),
        ({"ranks": CONFIG.ranks[:1] * 2}, "ranks"),
        ({"value_bytes": 10}, "valueBytes"),
        ({"value_bytes": 1 << 40}, "valueBytes"),
        ({"connections": 0}, "connections"),
        ({"connections": 9}, "connections"),
        ({"seconds": 0.0}, "seconds"),
        ({"seconds": 61.0}, "seconds"),
        ({"seconds": float("nan")}, "seconds"),
        ({"max_bytes": 3 * 2 * MIB * 4 - 1}, "maxBytes"),
        ({"max_bytes": 1 << 50}, "maxBytes"),
        ({"password": ""}, "token"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(change: dict[str, Any], names: str) -> None:
    with pytest.raises(BadConfig, match=f"^{names}: ") as refusal:
        replace(CONFIG, **change)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", "5", '{"ranks": 1}', '{"ranks": [{}]}', '{"ranks": [[]]}'],
)
def test_a_file_that_is_none_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadConfig) as refusal:
        parse(text, token="t", ca=None)
    assert "probe.json" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("field", "value"), [("seconds", "x"), ("valueBytes", None), ("maxBytes", [])]
)
def test_a_field_of_another_type_is_refused_in_one_line(field: str, value: object) -> None:
    text = json.dumps(document(CONFIG) | {field: value})
    with pytest.raises(BadConfig):
        parse(text, token="t", ca=None)


def test_tls_without_a_ca_is_refused() -> None:
    text = json.dumps(document(replace(CONFIG, ca="PEM")))
    with pytest.raises(BadConfig, match=r"^ca\.crt: "):
        parse(text, token="t", ca=None)


@pytest.mark.parametrize(
    ("used", "maxmemory", "count"),
    [
        (0, 64 * MIB, 2),  # a thousandth is less than one value
        (0, 5000 * MIB, 5),
        (0, 64_000 * MIB, MOST_VALUES),
        (5000 * MIB, 5000 * MIB, 2),  # full
        (4996 * MIB, 5000 * MIB, 2),  # there is no room for five
        (4995 * MIB, 5000 * MIB, 5),
        (10 * MIB, 0, 2),  # no limit
    ],
)
def test_a_rank_is_given_a_thousandth_of_its_memory_and_two_values_when_it_is_full(
    used: int, maxmemory: int, count: int
) -> None:
    assert values_to_store(CONFIG, used_memory=used, maxmemory=maxmemory) == count


@settings(deadline=None)
@given(
    st.integers(0, 1 << 41),
    st.integers(0, 1 << 41),
    st.integers(100, 64 * MIB),
    st.floats(1, 100),
)
def test_what_is_stored_stays_within_memory_and_bytes(
    used: int, maxmemory: int, size: int, generosity: float
) -> None:
    least = 3 * LEAST_VALUES * size * len(CONFIG.ranks)
    config = replace(CONFIG, value_bytes=size, max_bytes=int(least * generosity) + 1)
    count = values_to_store(config, used_memory=used, maxmemory=maxmemory)
    assert LEAST_VALUES <= count <= MOST_VALUES
    assert count == LEAST_VALUES or count * size <= maxmemory / 1000
    # Stored, compared, and at least so much is left to be timed.
    assert 3 * LEAST_VALUES * size <= config.rank_bytes
    assert count == LEAST_VALUES or 2 * count * size <= config.rank_bytes / 2

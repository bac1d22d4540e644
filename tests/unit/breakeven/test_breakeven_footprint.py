"""Bytes of a hit by length: slope, windows, states, and the copies that ranks make."""

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tier_specs import MakeSpec

from kvtier.api.load import InvalidTier
from kvtier.breakeven import footprint
from kvtier.breakeven.footprint import Footprint
from kvtier.breakeven.patterns import Access, assess_access
from kvtier.breakeven.tier import Verdict, assess

FULL = {"attention": "Full", "layers": 15, "kvHeads": 2, "headDim": 256}
LINEAR = {"attention": "Linear", "layers": 45, "stateBytes": 1000}
WINDOW = {"attention": "SlidingWindow", "layers": 39, "window": 128, "kvHeads": 8, "headDim": 192}
LATENT = {"attention": "Full", "layers": 61, "kvLoraRank": 512, "qkRopeHeadDim": 64}
INDEX = {"attention": "SparseIndex", "layers": 61, "indexHeadDim": 128}
HASH = {"pool.striping": "Hash", "store.memoryPerRank": "16Ti"}


def groups(*found: dict[str, Any]) -> dict[str, Any]:
    return HASH | {"model.layout": {"groups": list(found)}}


def test_a_sliding_window_adds_bytes_up_to_its_size_and_a_state_always(make_spec: MakeSpec) -> None:
    found = footprint.logical(make_spec(groups(FULL, WINDOW, LINEAR)))
    per_token = 15 * 2 * (256 + 256) * 2
    per_window_token = 39 * 8 * (192 + 192) * 2
    assert found.slope == per_token == 30_720
    for tokens in (0, 1, 100, 128, 129, 10_000):
        kept = min(tokens, 128)
        assert found.of(tokens) == per_token * tokens + per_window_token * kept + 45_000
    assert found.constant == per_window_token * 128 + 45_000


def test_a_value_may_be_shorter_than_its_key(make_spec: MakeSpec) -> None:
    """MiMo-V2: keys of 192, values of 128."""
    full = {"attention": "Full", "layers": 9, "kvHeads": 4, "headDim": 192, "valueHeadDim": 128}
    window = WINDOW | {"valueHeadDim": 128}
    found = footprint.logical(make_spec(groups(full, window)))
    assert (found.slope, found.constant) == (23_040, 39 * 8 * 320 * 2 * 128)


def test_compressed_attention_keeps_one_entry_for_a_stride_of_tokens(make_spec: MakeSpec) -> None:
    found = footprint.logical(make_spec(groups(LATENT | {"compressionStride": 128})))
    assert found.slope == Fraction(61 * 576 * 2, 128)
    assert found.of(1) == math.ceil(61 * 576 * 2 / 128)
    assert found.of(128) == 61 * 576 * 2


def test_entry_bytes_stand_for_what_elements_would_give(make_spec: MakeSpec) -> None:
    spec = make_spec(groups(LATENT | {"entryBytes": 656}, INDEX | {"entryBytes": 132}))
    assert footprint.logical(spec).slope == 61 * (656 + 132)


def test_one_full_group_is_what_gqa_and_mla_say(make_spec: MakeSpec) -> None:
    gqa = {"gqa": {"layers": 15, "kvHeads": 2, "headDim": 256}}
    mla = {"mla": {"layers": 61, "kvLoraRank": 512, "qkRopeHeadDim": 64}}
    for layout, group in ((gqa, FULL), (mla, LATENT)):
        named, grouped = make_spec(HASH | {"model.layout": layout}), make_spec(groups(group))
        assert footprint.wire(named) == footprint.wire(grouped)
        assert footprint.logical(named) == footprint.logical(grouped)


def test_each_group_has_its_own_copies(make_spec: MakeSpec) -> None:
    """At 8 ranks: 2 KV heads 4 times, 8 heads once; a state is split over the ranks."""
    found = footprint.wire(make_spec(groups(FULL, WINDOW, LINEAR)))
    assert found.slope == 4 * 30_720
    assert found.constant == 39 * 8 * 384 * 2 * 128 + 45_000
    tensor = make_spec(groups(FULL, WINDOW, LINEAR) | {"pool.ranks": 2})
    assert footprint.wire(tensor).slope == 30_720


def test_latents_alone_are_stored_once_and_beside_others_by_every_rank(
    make_spec: MakeSpec,
) -> None:
    once = 61 * (576 + 128) * 2
    assert footprint.wire(make_spec(groups(LATENT, INDEX))).slope == once
    window = {"attention": "SlidingWindow", "layers": 61, "window": 128}
    window |= {"kvLoraRank": 448, "qkRopeHeadDim": 64}
    assert footprint.wire(make_spec(groups(LATENT, INDEX, window))).slope == once
    assert footprint.wire(make_spec(groups(LATENT, INDEX, LINEAR))).slope == 8 * once
    heads = FULL | {"kvHeads": 8}
    beside = footprint.wire(make_spec(groups(heads, INDEX))).slope
    assert beside == 15 * 8 * 512 * 2 + 8 * 61 * 128 * 2


def test_every_chunk_is_stored_with_what_a_hit_that_ends_there_needs(make_spec: MakeSpec) -> None:
    wide = {"attention": "SlidingWindow", "layers": 1, "window": 1024, "kvHeads": 8, "headDim": 64}
    found = assess(make_spec(groups(FULL | {"kvHeads": 8}, WINDOW, wide, LINEAR)))
    window = 39 * 8 * 384 * 2 * 128
    assert found.chunk_bytes == 256 * 4 * 30_720 + window + 256 * 8 * 128 * 2 + 45_000
    assert found.chunk_bytes_per_rank == found.chunk_bytes


def test_a_state_is_a_value_of_each_rank_and_must_fit_one(make_spec: MakeSpec) -> None:
    state = LINEAR | {"layers": 4, "stateBytes": 1 << 28}
    assert footprint.chunk_bytes(make_spec(groups(FULL, state))) > 1 << 30
    with pytest.raises(InvalidTier, match=r"layout.groups: the states of linear layers are"):
        make_spec(groups(FULL, state) | {"pool.ranks": 2})
    with pytest.raises(InvalidTier, match=r"no value above 536870912; lower it to at most \d+, or"):
        make_spec(groups(FULL, state) | {"pool.chunkTokens": 65536})


def test_the_constant_of_a_hybrid_moves_its_minimum_hit_but_not_its_break_even(
    make_spec: MakeSpec,
) -> None:
    known = {
        "pool.hitLatency": "100ms",
        "pool.hitEngineTime": "0s",
        "pool.ranks": 1,
        "placement.links": [{"domain": "zone", "bitsPerSecond": "80G", "roundTrip": "1us"}],
    }
    state = LINEAR | {"layers": 1, "stateBytes": 200_000_000}
    plain = assess(make_spec(groups(FULL) | known))
    hybrid = assess(make_spec(groups(FULL, state) | known))
    assert plain.break_even == hybrid.break_even == 30_720 * 5000
    # (T0 + rtt + states / B) / (1/R - s/B)
    each = 1 / 5000 - 30_720 / 1e10
    assert plain.minimum_hit == math.floor(0.100001 / each) + 1
    assert hybrid.minimum_hit == math.floor(0.120001 / each) + 1
    assert (plain.constant_bytes, hybrid.constant_bytes) == (0, 200_000_000)
    row = next(row for row in hybrid.rows if row.tokens == 4096)
    assert row.fetch_seconds == pytest.approx(0.100001 + (200e6 + 4096 * 30_720) / 1e10)
    assert hybrid.verdict is Verdict.PAYS


def test_a_row_of_a_hybrid_wins_exactly_above_the_bandwidth_it_names(make_spec: MakeSpec) -> None:
    link = [{"domain": "zone", "bitsPerSecond": "10G", "roundTrip": "1us"}]
    known = {"pool.hitLatency": "0s", "pool.hitEngineTime": "0s", "placement.links": link}
    state = LINEAR | {"layers": 1, "stateBytes": 300_000_000}
    found = assess(make_spec(groups(FULL, WINDOW, state) | known))
    assert {row.wins for row in found.rows} == {True, False}
    for row in found.rows:
        assert row.bytes_per_second is not None
        assert row.wins is (row.bytes_per_second < 10e9 / 8)
    assert found.minimum_hit is not None
    assert all(row.wins is (row.tokens >= found.minimum_hit) for row in found.rows)


def test_the_constant_is_in_the_status_only_where_there_is_one(make_spec: MakeSpec) -> None:
    assert assess(make_spec(groups(FULL, LINEAR))).status()["constantBytes"] == 45_000
    assert "constantBytes" not in assess(make_spec()).status()


def test_streaming_a_hybrid_reads_its_windows_and_not_what_fell_out_of_them(
    make_spec: MakeSpec,
) -> None:
    link = [{"domain": "zone", "bitsPerSecond": "8G", "roundTrip": "1us"}]
    spec = make_spec(groups(FULL, WINDOW) | {"pool.ranks": 1, "placement.links": link})
    longest = assess_access(spec, Access.PER_TOKEN_STREAM).rows[-1]
    moved = 131_072 * 30_720 + 128 * 39 * 8 * 384 * 2
    assert longest.remote_seconds == pytest.approx(moved / 1e9, abs=1e-5)
    bound = assess_access(spec, Access.PER_TOKEN_ATTENTION).rows[0].remote_seconds
    assert bound == pytest.approx(15e-6)


@settings(deadline=None)
@given(
    slope=st.fractions(0, 10**6),
    windows=st.lists(st.tuples(st.integers(1, 10**6), st.fractions(0, 10**6)), max_size=3),
    states=st.integers(0, 10**9),
    tokens=st.integers(1, 10**7),
)
def test_a_longer_hit_needs_more_bytes_and_no_more_for_each_token(
    slope: Fraction, windows: list[tuple[int, Fraction]], states: int, tokens: int
) -> None:
    """So that a longer hit wins whenever a shorter one does."""
    found = Footprint(slope=slope, windows=tuple(windows), states=states)
    assert found.of(tokens) <= found.of(tokens + 1)
    assert (found.of(tokens + 1) - 1) * tokens <= found.of(tokens) * (tokens + 1)
    assert found.of(tokens) <= math.ceil(slope * tokens) + found.constant


@pytest.mark.parametrize("tokens", [-1, math.inf, math.nan])
def test_a_length_that_is_none_is_refused(tokens: float) -> None:
    with pytest.raises(ValueError, match="tokens"):
        Footprint(slope=Fraction(1)).of(tokens)

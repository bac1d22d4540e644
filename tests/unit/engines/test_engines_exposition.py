"""From an engine's metrics text to counters, and from anything else to nothing."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.engines import exposition
from kvtier.engines.exposition import MOST_LINES, Counters, Kind, parse
from kvtier.engines.rates import Bounds, between, bounds

METRICS = Path(__file__).parent / "metrics"


def text(name: str) -> str:
    return (METRICS / f"{name}.prom").read_text()


def read(name: str) -> Counters:
    found = parse(text(name))
    assert found is not None
    return found


def shown(release: str, *, seconds: float) -> Bounds:
    work = between(read(f"{release}-before"), read(f"{release}-after"), seconds=seconds)
    assert work is not None
    found = bounds(work)
    assert found is not None
    return found


def test_vllm_counts_each_data_parallel_engine() -> None:
    assert read("vllm-0.32.0-after") == Counters(
        kind=Kind.VLLM,
        series=2,
        requests=82.0,
        prompt=2 * (40 * 4000.0 + 64),
        hits=2 * 40 * 160.0,
        computed=2 * (40 * 3840.0 + 64),
        busy=40.5,
        ends=82.0,
        generated=82.0,
        started=1.7960304e9,
    )


def test_the_rate_of_vllm_is_that_of_one_engine() -> None:
    """3,840 tokens in half a second, and 40 of them in a minute."""
    found = shown("vllm-0.32.0", seconds=60.0)
    assert found.at_least == pytest.approx(7680)
    assert found.at_most == pytest.approx(7680 + 2560)
    assert found.prompt_tokens == 4000


def test_the_rate_of_sglang_is_by_the_seconds_of_its_gpu() -> None:
    """All of them in which it may have prefilled: 30, and not the 12.5 of pure decoding."""
    assert shown("sglang-0.5.20", seconds=60.0) == Bounds(
        at_least=8000.0, at_most=8000.0, prompt_tokens=4000.0
    )


def test_sglang_without_the_gpus_seconds_is_known_by_the_clock() -> None:
    lines = text("sglang-0.5.20-after").splitlines(keepends=True)
    found = parse("".join(line for line in lines if "gpu_execution" not in line))
    assert found is not None
    assert found.busy is None
    assert found.computed == 240_064


def test_ranks_that_all_tell_the_same_repeat_it() -> None:
    after = text("sglang-0.5.20-after")
    more = [line for line in after.splitlines(keepends=True) if 'tp_rank="0"' in line]
    found = parse(after + "".join(more).replace('tp_rank="0"', 'tp_rank="1"'))
    assert found is not None
    assert found.series == 2
    assert (found.computed, found.busy) == (2 * 240_064, 2 * 30.25)


@pytest.mark.parametrize("name", sorted(exposition._VLLM.values()))
def test_a_release_without_one_of_the_names_is_not_observed(name: str) -> None:
    lines = text("vllm-0.32.0-after").splitlines(keepends=True)
    assert parse("".join(line for line in lines if not line.startswith(name))) is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "many", ""])
def test_figures_that_are_none_are_not_observed(value: str) -> None:
    name = "vllm:request_prefill_time_seconds_sum"
    assert parse(text("vllm-0.32.0-after") + f'{name}{{engine="2"}} {value}\n') is None


@pytest.mark.parametrize(
    "content", ["", "\n", "<html>vllm:request_prompt_tokens_sum</html>", "kvtier_leader 1\n", "{}"]
)
def test_what_is_no_engine_is_not_observed(content: str) -> None:
    assert parse(content) is None


def test_more_lines_than_engines_have_are_not_read() -> None:
    line = 'vllm:request_prompt_tokens_sum{{engine="{}"}} 1\n'
    many = "".join(line.format(number) for number in range(MOST_LINES))
    assert parse(text("vllm-0.32.0-after") + many) is None


@settings(deadline=None, max_examples=200)
@given(
    rest=st.lists(st.tuples(st.sampled_from(exposition._WANTED), st.text(max_size=30)), max_size=20)
)
def test_nothing_that_a_stranger_writes_raises(rest: list[tuple[str, str]]) -> None:
    parse("".join(f"{name}{tail}\n" for name, tail in rest))
    parse(text("sglang-0.5.20-after") + "".join(f"{name}{{{tail}\n" for name, tail in rest))

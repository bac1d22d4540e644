"""From an engine's metrics text to counters, and from anything else to nothing."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.engines import exposition
from kvtier.engines.exposition import (
    LONGEST_LINE,
    MOST_CHARACTERS,
    MOST_LINES,
    Counters,
    Kind,
    parse,
)
from kvtier.engines.rates import Bounds, Work, between, bounds

METRICS = Path(__file__).parent / "metrics"


def text(name: str) -> str:
    return (METRICS / f"{name}.prom").read_text()


def read(name: str) -> Counters:
    found = parse(text(name))
    assert found is not None
    return found


def done(before: str, after: str, *, seconds: float) -> Work:
    found = between(read(before), read(after), seconds=seconds)
    assert found is not None
    return found


def two_engines(name: str) -> Counters:
    """The same text as of a pod with two data parallel ranks."""
    found = parse(text(name) + text(name).replace('engine="0"', 'engine="1"'))
    assert found is not None
    return found


def test_vllm_s_counters_are_read() -> None:
    assert read("vllm-0.32.0-alone") == Counters(
        kind=Kind.VLLM,
        series=1,
        requests=54.0,
        prompt=106_584.0,
        hits=0.0,
        computed=106_584.0,
        busy=240.0591576900042,
        ends=54.0,
        generated=54.0,
        started=1.79601711154e9,
    )


def test_the_rate_of_a_real_engine_is_what_its_client_saw() -> None:
    """104,520 tokens, for which the client waited 234.32 s."""
    found = bounds(done("vllm-0.32.0-idle", "vllm-0.32.0-alone", seconds=239.97))
    assert found is not None
    assert found.at_least == pytest.approx(104_520 / 234.32, rel=0.01)
    assert found.at_most == pytest.approx(104_520 / 234.32 + 104_520 / 239.97, rel=0.01)
    assert found.prompt_tokens == 2010


def test_a_real_engine_s_bursts_bound_its_rate_from_below_only() -> None:
    """67,200 tokens in 261 s; requests that share steps add up to 632 s."""
    work = done("vllm-0.32.0-alone", "vllm-0.32.0-bursts", seconds=268.20)
    assert work.busy == pytest.approx(632, abs=1)
    found = bounds(work)
    assert found is not None
    assert found.at_least == pytest.approx(67_200 / 268.20)
    assert found.at_most is None


def test_a_real_engine_s_hits_are_told_from_what_it_computed() -> None:
    work = done("vllm-0.32.0-bursts", "vllm-0.32.0-hits", seconds=3.96)
    assert (work.hits, work.computed, work.requests) == (23_040, 960, 20)
    assert bounds(work) is None


def test_data_parallel_ranks_are_engines_of_their_own() -> None:
    pod = between(two_engines("vllm-0.32.0-idle"), two_engines("vllm-0.32.0-alone"), seconds=239.97)
    assert pod is not None
    assert (pod.computed, pod.requests) == (2 * 104_520, 104)
    assert bounds(pod) == bounds(done("vllm-0.32.0-idle", "vllm-0.32.0-alone", seconds=239.97))


def test_the_rate_of_sglang_is_by_the_seconds_of_its_gpu() -> None:
    """All of them in which it may have prefilled: 30, and not the 12.5 of pure decoding."""
    work = done("sglang-0.5.20-before", "sglang-0.5.20-after", seconds=60.0)
    assert bounds(work) == Bounds(at_least=8000.0, at_most=8000.0, prompt_tokens=4000.0)


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
    lines = text("vllm-0.32.0-alone").splitlines(keepends=True)
    assert parse("".join(line for line in lines if not line.startswith(name))) is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "many", "", "9" * 400, "1e308"])
def test_figures_that_are_none_are_not_observed(value: str) -> None:
    name = "vllm:request_prefill_time_seconds_sum"
    assert parse(text("vllm-0.32.0-alone") + f'{name}{{engine="2"}} {value}\n') is None


@pytest.mark.parametrize(
    "content", ["", "\n", "<html>vllm:request_prompt_tokens_sum</html>", "kvtier_leader 1\n", "{}"]
)
def test_what_is_no_engine_is_not_observed(content: str) -> None:
    assert parse(content) is None


def test_more_lines_than_engines_have_are_not_read() -> None:
    line = 'vllm:request_prompt_tokens_sum{{engine="{}"}} 1\n'
    many = "".join(line.format(number) for number in range(MOST_LINES))
    assert parse(text("vllm-0.32.0-alone") + many) is None


def test_more_characters_than_engines_have_are_not_read() -> None:
    """Escaped quotes are what the parser is slowest with."""
    line = 'vllm:request_prompt_tokens_sum{a="' + 200 * '\\"' + '"} 1\n'
    few, many = text("vllm-0.32.0-alone") + line, MOST_CHARACTERS // len(line) + 1
    assert parse(few) is not None
    assert parse(text("vllm-0.32.0-alone") + many * line) is None


def test_a_line_longer_than_any_engine_s_does_not_count() -> None:
    line = 'vllm:request_prompt_tokens_sum{a="' + LONGEST_LINE * "x" + '"} 1\n'
    assert parse(text("vllm-0.32.0-alone") + line) == read("vllm-0.32.0-alone")


@settings(deadline=None, max_examples=200)
@given(
    rest=st.lists(st.tuples(st.sampled_from(exposition._WANTED), st.text(max_size=30)), max_size=20)
)
def test_nothing_that_a_stranger_writes_raises(rest: list[tuple[str, str]]) -> None:
    parse("".join(f"{name}{tail}\n" for name, tail in rest))
    parse(text("sglang-0.5.20-after") + "".join(f"{name}{{{tail}\n" for name, tail in rest))

"""From an engine's metrics text to the tokens that a tier served, and to no others."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.engines import hits
from kvtier.engines.hits import TokenCounters, TokenWork, read_tokens, tokens_between

METRICS = Path(__file__).parent / "metrics"


def text(name: str) -> str:
    return (METRICS / f"{name}.prom").read_text()


def read(of: str) -> TokenCounters:
    found = read_tokens(of)
    assert found is not None
    return found


def done(before: str, after: str, *, seconds: float) -> TokenWork:
    found = tokens_between(read(before), read(after), seconds=seconds)
    assert found is not None
    return found


def without(of: str, *names: str) -> str:
    return "".join(line for line in of.splitlines(keepends=True) if not line.startswith(names))


VLLM = text("vllm-0.32.0-hits")
# What a tier gives is in the real text as zeros: this engine had no connector.
CONNECTED = VLLM.replace(
    'source="external_kv_transfer"} 0.0', 'source="external_kv_transfer"} 9000.0'
).replace(
    'external_prefix_cache_hits_total{engine="0",model_name="tiny"} 0.0',
    'external_prefix_cache_hits_total{engine="0",model_name="tiny"} 9500.0',
)


def test_a_gpu_s_own_hits_are_not_the_tier_s() -> None:
    """20 prompts again, of which the GPU held 23,040 of 24,000 tokens."""
    work = done(text("vllm-0.32.0-bursts"), VLLM, seconds=3.96)
    assert (work.prompt, work.hit, work.computed, work.requests) == (24_000, 0, 960, 20)
    assert work.source == "vllm:prompt_tokens_by_source_total"
    assert not work.busy


def test_what_a_connector_gave_is_the_tier_s() -> None:
    assert read(CONNECTED).hit == 9000


def test_a_vllm_without_sources_tells_hits_as_it_schedules_them() -> None:
    old = read(without(CONNECTED, "vllm:prompt_tokens_by_source_total"))
    assert (old.source, old.hit) == ("vllm:external_prefix_cache_hits_total", 9500)
    assert old.computed == 197_784 - 23_040 - 9500


def test_a_vllm_that_tells_no_connector_s_hits_tells_of_lmcache_within_it_or_of_no_tier() -> None:
    oldest = without(CONNECTED, "vllm:prompt_tokens_by_source_total", "vllm:external_prefix")
    assert (read(oldest).source, read(oldest).hit) == ("", 0)
    inside = read(oldest + 'lmcache:num_lookup_hits_total{model_name="tiny"} 4096.0\n')
    assert (inside.source, inside.hit) == ("lmcache:num_lookup_hits_total", 4096)


def test_lmcache_s_own_memory_is_not_the_tier_s_either() -> None:
    """Nine look-ups of 4,096 tokens: 1,024 from L1, 2,048 from L2."""
    before, after = text("lmcache-0.5.6-mp-before"), text("lmcache-0.5.6-mp-after")
    work = done(before, after, seconds=2.0)
    assert (work.prompt, work.hit, work.computed) == (9 * 4096, 9 * 2048, 9 * 1024)
    assert work.source == "lmcache_mp_lookup_hit_l2_tokens_total"


def test_lmcache_s_whole_prompts_count_where_it_tells_them() -> None:
    newer = text("lmcache-0.5.6-mp-after").replace(
        "lmcache_mp_lookup_requested_tokens_total{", "lmcache_mp_lookup_prompt_tokens_total{"
    )
    assert read(newer).prompt == 40_960


def test_an_engine_s_text_with_lmcache_s_in_it_has_the_engine_s_prompts_and_l2_s_hits() -> None:
    both = read(CONNECTED + text("lmcache-0.5.6-mp-after"))
    assert (both.prompt, both.hit, both.source) == (197_784, 18_432, hits.LMCACHE_L2)


def test_only_what_waits_for_the_gpu_makes_an_engine_busy() -> None:
    def waits(capacity: int, deferred: int) -> str:
        return (
            VLLM.replace(
                'num_requests_waiting{engine="0",model_name="tiny"} 0.0',
                f'num_requests_waiting{{engine="0",model_name="tiny"}} {capacity + deferred}',
            )
            .replace('reason="capacity"} 0.0', f'reason="capacity"}} {capacity}')
            .replace('reason="deferred"} 0.0', f'reason="deferred"}} {deferred}')
        )

    assert read(waits(0, 5)).waiting == 5
    assert not done(waits(0, 5), waits(0, 5), seconds=1).busy
    assert not done(waits(2, 0), waits(0, 0), seconds=1).busy
    assert done(waits(2, 0), waits(1, 0), seconds=1).busy
    reasonless = without(waits(2, 0), "vllm:num_requests_waiting_by_reason")
    assert done(reasonless, reasonless, seconds=1).busy


def test_data_parallel_ranks_count_together() -> None:
    pod = read(CONNECTED + CONNECTED.replace('engine="0"', 'engine="1"'))
    assert (pod.prompt, pod.hit) == (2 * 197_784, 18_000)


def test_sglang_without_a_storage_tells_nothing_of_a_tier() -> None:
    found = read(text("sglang-0.5.20-after"))
    assert (found.source, found.prompt, found.hit, found.computed) == ("", 240_064, 0, 240_064)
    assert found.waiting == 0


def test_sglang_with_a_storage_tells_its_hits_from_the_first_page_it_wrote() -> None:
    after = text("sglang-0.5.20-after")
    wrote = after + 'sglang:backuped_tokens_total{tp_rank="0"} 4096.0\n'
    assert (read(wrote).source, read(wrote).hit) == ("sglang:cached_tokens_total", 0)
    hit = wrote + "".join(
        f'sglang:cached_tokens_total{{model_name="tiny",cache_source="{source}"}} {tokens}\n'
        for source, tokens in {"storage_HiCacheFile": 5000, "host": 700}.items()
    )
    assert read(hit).hit == 5000
    assert read(hit).computed == 240_064 - 5700


def test_ranks_of_one_sglang_tell_one_queue_and_data_parallel_ranks_one_each() -> None:
    queue = "".join(
        f'sglang:num_queue_reqs{{tp_rank="{tp}",dp_rank="{dp}"}} {dp + 3}\n'
        for tp in range(2)
        for dp in range(2)
    )
    plain = without(text("sglang-0.5.20-after"), "sglang:num_queue_reqs")
    assert read(plain + queue).waiting == 7


def test_a_process_that_started_again_says_nothing_of_the_time_between() -> None:
    again = VLLM.replace("1.79601711154e+09", "1.79601799999e+09")
    assert tokens_between(read(VLLM), read(again), seconds=2) is None
    assert tokens_between(read(VLLM), read(text("vllm-0.32.0-bursts")), seconds=2) is None
    assert tokens_between(read(VLLM), read(VLLM), seconds=0) is None


def test_another_source_than_before_starts_anew() -> None:
    assert tokens_between(read(VLLM), read(without(VLLM, hits.VLLM_BY_SOURCE)), seconds=2) is None


def test_no_hit_is_more_than_the_prompt_and_nothing_is_computed_backwards() -> None:
    before = TokenCounters(source="s", prompt=0, hit=0, computed=50)
    after = TokenCounters(source="s", prompt=100, hit=400, computed=20)
    work = tokens_between(before, after, seconds=1)
    assert work is not None
    assert (work.hit, work.computed) == (100, 0)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "\n",
        "vllm:prompt_tokens_total",
        "vllm:prompt_tokens_total -1",
        "vllm:prompt_tokens_total NaN",
        "vllm:prompt_tokens_total 1e30",
        "vllm:num_requests_waiting 3",
    ],
)
def test_a_text_without_prompt_tokens_is_none(bad: str) -> None:
    assert read_tokens(bad) is None


@settings(max_examples=200, deadline=None)
@given(
    lines=st.lists(st.tuples(st.sampled_from(hits.WANTED), st.text(max_size=30)), max_size=20),
)
def test_whatever_a_stranger_writes_raises_nothing(lines: list[tuple[str, str]]) -> None:
    found = read_tokens("".join(f"{name}{rest}\n" for name, rest in lines))
    assert found is None or found.prompt >= 0

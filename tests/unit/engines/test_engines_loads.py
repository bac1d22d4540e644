"""What engines tell of loads that failed."""

from pathlib import Path

import pytest

from kvtier.engines.loads import failed_loads, more

TEXTS = Path(__file__).parent / "metrics"
LOOKUP = 'lmcache_mp_lookup_requested_tokens_total{model_name="m"} 4096.0\n'


@pytest.mark.parametrize("name", ["chunks_total", "total"])
def test_lmcache_s_failures_count_whatever_their_reason_and_the_unit_in_the_name(name: str) -> None:
    failure = f"lmcache_mp_l2_prefetch_failure_{name}"
    text = f'{LOOKUP}{failure}{{reason="not_found"}} 3\n{failure}{{reason="l1_oom"}} 2\n'
    assert failed_loads(text) == 5


def test_what_the_plugin_did_not_load_is_among_lmcache_s() -> None:
    plugin = (
        'kvtier_plugin_not_loaded_total{rank="0"} 4\nkvtier_plugin_not_loaded_total{rank="1"} 4\n'
    )
    lmcache = 'lmcache_mp_l2_prefetch_failure_chunks_total{reason="not_found"} 9\n'
    assert failed_loads(plugin) == 8
    assert failed_loads(LOOKUP + plugin + lmcache) == 9


def test_an_lmcache_server_where_none_has_failed_tells_none() -> None:
    assert failed_loads((TEXTS / "lmcache-0.5.6-mp-after.prom").read_text()) == 0


@pytest.mark.parametrize("name", ["vllm-0.32.0-hits.prom", "sglang-0.5.20-after.prom"])
def test_engines_alone_tell_nothing(name: str) -> None:
    assert failed_loads((TEXTS / name).read_text()) is None


@pytest.mark.parametrize("text", ["", "no metric", LOOKUP.replace("4096.0", "NaN")])
def test_a_text_that_is_none_tells_nothing(text: str) -> None:
    assert failed_loads(text) is None


def test_a_pod_s_first_reading_is_of_the_past_and_a_counter_that_shrank_began_anew() -> None:
    assert more(None, 7.0) == 0
    assert more(7.0, 9.0) == 2
    assert more(9.0, 1.0) == 1

"""Pure: what a text tells of loads that failed: found in the tier, and then not had.

- LMCache's server (names of 0.5.6): chunks of ``l2_prefetch_failure``, which a look-up found in L2
  and which did not arrive in L1, whatever the reason. Releases differ in the unit in the name.
- kvtier's plugin in it: ``kvtier_plugin_not_loaded_total``, objects that a rank did not give.
  LMCache counts them too, so that of the two only the greater one counts.

vLLM 0.32 and SGLang 0.5.20 count nothing of the kind; LMCache inside an engine has gauges only, of
the moment. None of them tells that it fell back to a slower transport, and none counts apart what
it prefilled because a load failed.
"""

from typing import Final

from prometheus_client.samples import Sample

from kvtier.engines.exposition import samples

_LMCACHE: Final = "lmcache_mp_l2_prefetch_failure"
_PLUGIN: Final = "kvtier_plugin_not_loaded_total"
_SERVER: Final = "lmcache_mp_lookup_requested_tokens_total"
"""There once anything was looked up; the counter of failures only once one has failed."""
_TOTAL: Final = "_total"
WANTED: Final = (_LMCACHE, _PLUGIN, _SERVER)


def failed_loads(text: str) -> float | None:
    """Chunks since the pod's start, None for a text that cannot tell. Raises nothing."""
    found = samples(text, WANTED)
    if not found:
        return None
    lmcache = [each for name, of in found.items() if _is_failure(name) for each in of]
    return max(_sum(lmcache), _sum(found.get(_PLUGIN, [])))


def more(before: float | None, after: float) -> float:
    """Chunks that failed between two readings; ``before`` is None for the first one of a pod. A
    counter that shrank began anew in between."""
    if before is None:
        return 0.0
    return after - before if after >= before else after


def _is_failure(name: str) -> bool:
    return name.startswith(_LMCACHE) and name.endswith(_TOTAL)


def _sum(these: list[Sample]) -> float:
    return sum(each.value for each in these)

"""Series of tiers are what prometheus-client would show of them."""

from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from kvtier.metrics import Metrics
from kvtier.series import MOST_TEMPLATES, Series

KEY, OTHER = ("serving", "demo"), ("batch", "demo")


def samples(families: Iterable[Metric]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = [sample for family in families for sample in family.samples]
    return {(each.name, frozenset(each.labels.items())): each.value for each in found}


@pytest.fixture
def series() -> Series:
    found = Series()
    single = found.gauge("a_bytes", 'A "text".\\')
    labelled = found.gauge("b", "B", "z", "bound")
    counter = found.counter("c", "C", "rank")
    for key in (KEY, OTHER):
        single.set(key, 123456789012.0)
        labelled.set(key, 0.1, 'odd "%s" \\ \n word', "least")
        counter.inc(key, "0", by=0)
        counter.inc(key, "1", by=2.5)
    single.set(OTHER, 1e-7)
    return found


def test_its_text_says_what_the_client_library_s_does(series: Series) -> None:
    registry = CollectorRegistry()
    registry.register(series)
    theirs = samples(plain(generate_latest(registry).decode()))
    assert samples(plain("".join(series.text()))) == theirs
    assert samples(openmetrics("".join(series.text(openmetrics=True)) + "# EOF\n")) == theirs
    assert len(theirs) == 8
    heads = [line for line in "".join(series.text()).splitlines() if line.startswith("#")]
    assert heads == [
        line for line in generate_latest(registry).decode().splitlines() if line.startswith("#")
    ]


def test_a_server_s_counter_may_begin_anew() -> None:
    series = Series()
    counter = series.counter("kvtier_rank_evicted_keys", "Evicted.", "rank")
    for value in (7, 2):
        counter.set(KEY, value, "0")
    labels = 'namespace="serving",rank="0",tier="demo"'
    assert f"kvtier_rank_evicted_keys_total{{{labels}}} 2.0\n" in "".join(series.text())


def test_a_forgotten_tier_has_no_series(series: Series) -> None:
    series.forget(KEY)
    left = samples(series.collect())
    assert left
    assert all(("namespace", "batch") in labels for _, labels in left)
    assert "serving" not in "".join(series.text())


def test_what_is_not_known_any_more_has_no_series() -> None:
    series = Series()
    one, many = series.gauge("one", "One."), series.gauge("many", "Many.", "rank")
    one.set(KEY, 1)
    many.set(KEY, 1, "0")
    many.replace(KEY, {("1",): 2.0})
    one.set(KEY, None)
    assert samples(series.collect()) == {
        ("many", frozenset({("namespace", "serving"), ("tier", "demo"), ("rank", "1")})): 2.0
    }
    many.set(KEY, None, "1")
    assert samples(series.collect()) == {}


def test_tiers_that_come_and_go_between_two_pieces_hurt_nobody() -> None:
    series = Series()
    gauge = series.gauge("g", "G.", "rank")
    for number in range(3000):
        gauge.replace(("ns", f"t{number}"), {(str(rank),): 1.0 for rank in range(4)})
    pieces = series.text()
    shown = [next(pieces), next(pieces)]
    gauge.forget(("ns", "t2999"))
    gauge.set(("ns", "new"), 1.0, "0")
    shown += pieces
    assert len("".join(shown).splitlines()) == 2 + 4 * 2999
    assert max(map(len, shown)) < 400_000


def test_labels_that_come_and_go_are_not_kept_for_ever() -> None:
    series = Series()
    gauge = series.gauge("g", "G.", "generation")
    for number in range(MOST_TEMPLATES + 10):
        gauge.replace(KEY, {(f"g{number}",): 1.0})
        "".join(series.text())
    assert len(gauge._templates) <= MOST_TEMPLATES


def test_every_metric_of_tiers_is_in_the_registry_once() -> None:
    metrics = Metrics()
    names = [family.name for family in metrics.registry.collect()]
    assert len(names) == len(set(names))
    assert {"kvtier_rank_up", "kvtier_reconcile", "kvtier_build_info"} <= set(names)

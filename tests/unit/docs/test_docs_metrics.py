"""The tables of metrics are the code's."""

from pathlib import Path

import pytest

from kvtier.metrics_reference import PAGES, described, page, table, texts

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("process", PAGES)
def test_a_page_has_the_table_that_the_code_gives(process: str) -> None:
    text = (DOCS / PAGES[process]).read_text()
    assert page(text, process) == text, "run python -m kvtier.metrics_reference"


def test_each_metric_has_one_text_and_each_text_a_metric() -> None:
    names = [each.name for of in described().values() for each in of]
    assert len(names) == len(set(names))
    assert set(texts()) == set(names)


@pytest.mark.parametrize("process", PAGES)
def test_names_follow_the_conventions_of_prometheus(process: str) -> None:
    for each in described()[process]:
        assert each.name.startswith("kvtier_")
        assert each.name.endswith("_total") == (each.type == "counter")
        assert "milliseconds" not in each.name
        assert not each.name.endswith(("_count", "_sum", "_bucket"))


def test_a_series_of_a_tier_names_its_tier_and_nothing_without_bounds() -> None:
    bounded = {"namespace", "tier", "rank", "generation", "type", "status", "state", "severity"}
    bounded |= {"result", "bound", "verdict", "reason", "stage", "verb", "kind", "code", "version"}
    for each in (one for of in described().values() for one in of):
        assert set(each.labels) <= bounded, each
        assert ("tier" in each.labels) == ("namespace" in each.labels)


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the metrics of the limiter"):
        page("# A page\n", "limiter")


def test_a_cell_cannot_end_its_row() -> None:
    assert all(line.count(" | ") == 3 for line in table("controller").splitlines())

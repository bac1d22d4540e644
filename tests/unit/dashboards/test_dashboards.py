"""The dashboards as files: ids, units, legends, what they link to and which metrics they name."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards import FOLDER, MAY_BE_EMPTY, dashboard_queries, dashboards, panels, variables
from named_metrics import exported_metrics, metrics_in

ROOT = Path(__file__).parents[3]
RUNBOOKS = ROOT / "docs/runbooks.md"
PAGE = ROOT / "docs/dashboards.md"
BOARDS = dashboards()
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in panels(board)]
DRAWN = [(name, panel) for name, panel in PANELS if panel["type"] != "row"]
COLUMNS = 24
"""Of Grafana's grid."""


def called(value: Any) -> str | None:
    return value["title"] if isinstance(value, dict) else None


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.name)
def test_a_file_is_indented_as_grafana_exports_it(path: Path) -> None:
    """So that a diff with what somebody exports is by fields, and not by lines."""
    written = path.read_text()
    assert written == json.dumps(json.loads(written), indent=2, ensure_ascii=False) + "\n"


def test_there_are_three_each_with_a_uid_and_a_title_of_its_own() -> None:
    assert {name: board["uid"] for name, board in BOARDS.items()} == {
        f"{what}.json": f"kvtier-{what}" for what in ("fleet", "storm", "tier")
    }
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)
    for board in BOARDS.values():
        assert "kvtier" in board["tags"]
        assert board["description"]
        # An id is of one Grafana's database, and replaces whatever has it in another one.
        assert board.get("id") is None


@pytest.mark.parametrize("name", BOARDS)
def test_ids_of_panels_and_titles_within_a_row_are_unique(name: str) -> None:
    found = list(panels(BOARDS[name]))
    ids = [panel["id"] for panel in found]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in found]
    assert sorted(set(titles)) == sorted(titles)


@pytest.mark.parametrize("name", BOARDS)
def test_panels_lie_within_the_grid_and_none_over_another(name: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels(BOARDS[name]):
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= COLUMNS, panel["title"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, (panel["title"], taken[x, y])
                taken[x, y] = panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_everything_asks_the_data_source_that_the_reader_chose(name: str) -> None:
    board = BOARDS[name]
    first, *others = variables(board)
    assert (first["name"], first["type"], first["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert all(variable["datasource"] == chosen for variable in others)
    for panel in panels(board):
        if panel["type"] != "row":
            assert panel["datasource"] == chosen, panel["title"]
            assert not any("datasource" in target for target in panel["targets"])


@pytest.mark.parametrize("name", BOARDS)
def test_a_variable_that_is_used_exists(name: str) -> None:
    board = BOARDS[name]
    known = {variable["name"] for variable in variables(board)}
    for panel in panels(board):
        for target in panel.get("targets", ()):
            used = set(re.findall(r"\$\{?(\w+)", target["expr"]))
            assert used <= known | {"__rate_interval"}, panel["title"]
            assert "[$__rate_interval" in target["expr"] or "rate_interval" not in target["expr"]


@pytest.mark.parametrize(("name", "panel"), DRAWN, ids=called)
def test_a_panel_says_what_it_shows_in_which_unit(name: str, panel: dict[str, Any]) -> None:
    assert len(panel["description"]) > 4
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    if panel["type"] != "timeseries":
        # Grafana's own turn red at 80.
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None
    refs = [target["refId"] for target in panel["targets"]]
    assert len(set(refs)) == len(refs) > 0
    if panel["type"] != "table":
        assert all(target["legendFormat"] for target in panel["targets"])


@pytest.mark.parametrize(("name", "panel"), DRAWN, ids=called)
def test_a_legend_names_labels_that_the_query_keeps(name: str, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        for label in re.findall(r"{{ *(\w+) *}}", target.get("legendFormat", "")):
            kept = re.findall(r"(?:by|on) \(([^)]*)\)", target["expr"])
            assert any(label in labels.split(", ") for labels in kept), target


@pytest.mark.parametrize(("name", "panel"), DRAWN, ids=called)
def test_links_lead_to_runbooks_that_are_there(name: str, panel: dict[str, Any]) -> None:
    sections = re.findall(r"^##? (\w+)$", RUNBOOKS.read_text(), re.MULTILINE)
    for link in panel.get("links", ()):
        assert link["title"] in sections
        assert link["url"] == f"docs/runbooks.md#{link['title'].lower()}"


def test_a_tier_in_a_table_leads_to_its_dashboard() -> None:
    boards = {board["uid"]: board for board in BOARDS.values()}
    found = [
        link
        for _, panel in DRAWN
        for override in panel["fieldConfig"]["overrides"]
        for setting in override["properties"]
        if setting["id"] == "links"
        for link in setting["value"]
    ]
    assert found
    for link in found:
        path, _, query = link["url"].partition("?")
        names = {variable["name"] for variable in variables(boards[path.removeprefix("/d/")])}
        assert set(re.findall(r"var-(\w+)=", query)) == names


@pytest.mark.parametrize("name", BOARDS)
def test_each_dashboard_leads_to_the_others_and_keeps_what_they_can_take(name: str) -> None:
    *others, runbooks = BOARDS[name]["links"]
    assert runbooks["url"] == "docs/runbooks.md"
    assert all(link["keepTime"] for link in others)
    if name == "fleet.json":
        # Its namespaces may be several, or all: the others show one.
        urls = {f"/d/kvtier-{board}?var-datasource=${{datasource}}" for board in ("tier", "storm")}
        assert {link["url"] for link in others} == urls
    else:
        (link,) = others
        assert (link["type"], link["tags"], link["includeVars"]) == ("dashboards", ["kvtier"], True)


@pytest.mark.parametrize("name", BOARDS)
def test_queries_read_only_metrics_that_are_exported(name: str) -> None:
    queries = [query for query in dashboard_queries() if query.dashboard == BOARDS[name]["uid"]]
    assert queries
    for query in queries:
        assert query.metrics, query
        assert query.metrics - {"ALERTS"} <= exported_metrics().keys(), query


def test_what_may_be_empty_is_in_some_query() -> None:
    named = set().union(*(query.metrics for query in dashboard_queries()))
    assert MAY_BE_EMPTY.keys() <= named


def test_names_are_found_outside_of_strings_and_a_histogram_by_its_own() -> None:
    expression = (
        'sum(rate(kvtier_reconcile_duration_seconds_bucket{a="kvtier_no_metric"}[5m]))'
        " / kvtier_tier_ranks and on (job) process_cpu_seconds_total"
    )
    assert metrics_in(expression) == {
        "kvtier_reconcile_duration_seconds",
        "kvtier_tier_ranks",
        "process_cpu_seconds_total",
    }


def test_promtool_parses_every_query(tmp_path: Path) -> None:
    binary = shutil.which("promtool")
    assert binary, "promtool is missing: `deploy/local/cluster build` installs it"
    rules = [
        {"record": f"query:{number}", "expr": query.expr}
        for number, query in enumerate(dashboard_queries())
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    run = subprocess.run(
        [binary, "check", "rules", "--lint=none", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"SUCCESS: {len(rules)} rules found" in run.stdout


def test_the_page_has_a_section_for_each_dashboard_with_its_rows() -> None:
    page = PAGE.read_text()
    for board in BOARDS.values():
        section = page.partition(f"## {board['title']}\n")[2].partition("\n## ")[0]
        rows = [panel["title"] for panel in panels(board) if panel["type"] == "row"]
        assert rows
        assert [row for row in rows if row not in section] == []

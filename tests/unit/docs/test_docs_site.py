"""The documentation site: a dead link fails it, and all pages are in its navigation."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kvtier.api import reasons

ROOT = Path(__file__).parents[3]
SITE = ROOT / "docs" / "site"
INDEX = "# Index\n\n## Start\n\n| page | for |\n|---|---|\n| [page.md](page.md) | something |\n"


def build(root: Path, *, page: str) -> subprocess.CompletedProcess[str]:
    """A site of two pages, by the options of `make docs`."""
    shutil.copytree(SITE, root / "docs" / "site", dirs_exist_ok=True)
    (root / "docs" / "README.md").write_text(INDEX)
    (root / "docs" / "page.md").write_text(page)
    recipe = re.search(
        r"sphinx-build (.*?)--conf-dir", (ROOT / "Makefile").read_text("utf-8"), re.DOTALL
    )
    assert recipe
    options = recipe[1].replace("\\\n", " ").split()
    command = [sys.executable, "-m", "sphinx", *options, "--conf-dir", "docs/site", ".", "out"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)


def test_a_page_gets_anchors_as_git_hosts_make_them_and_a_place_in_the_navigation(
    tmp_path: Path,
) -> None:
    page = "# Page\n\n[down](#what-its-for-a-b)\n\n# Second\n\n## What it's for: A & B\n"
    # A Git host drops the characters between two spaces and keeps both.
    run = build(tmp_path, page=page.replace("a-b", "a--b"))
    assert (run.returncode, run.stderr) == (0, "")
    html = (tmp_path / "out" / "docs" / "page.html").read_text("utf-8")
    assert 'id="what-its-for-a--b"' in html
    assert html.count("<h1>") == 1
    index = (tmp_path / "out" / "docs" / "README.html").read_text("utf-8")
    assert re.search(r'<li class="toctree-l1"><a [^>]*href="page.html">Page</a>', index)


def test_each_runbook_has_the_anchor_that_alerts_and_reasons_lead_to(tmp_path: Path) -> None:
    page = re.sub(r"\]\([\w./-]+\.md[^)]*\)", "]", (ROOT / "docs/runbooks.md").read_text("utf-8"))
    run = build(tmp_path, page=page)
    assert (run.returncode, run.stderr) == (0, "")
    html = (tmp_path / "out" / "docs" / "page.html").read_text("utf-8")
    rules = yaml.safe_load((ROOT / "charts/kvtier/rules/kvtier.yaml").read_text("utf-8"))
    alerts = {
        rule["annotations"]["runbook_url"].partition("#")[2]
        for group in rules["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    of_conditions = {each for listed in reasons.CONDITION_REASONS.values() for each in listed}
    names = {each.lower() for each in of_conditions | set(reasons.EVENT_REASONS)}
    assert alerts
    assert sorted(alerts | names) == sorted(
        each for each in alerts | names if f'id="{each}"' in html
    )


@pytest.mark.parametrize(
    ("link", "told"),
    [("#nowhere", "nowhere"), ("missing.md", "missing.md"), ("README.md#nowhere", "nowhere")],
)
def test_a_link_that_leads_nowhere_fails_the_build(link: str, told: str, tmp_path: Path) -> None:
    run = build(tmp_path, page=f"# Page\n\n[text]({link})\n")
    assert run.returncode != 0
    assert told in run.stderr


def test_a_page_that_the_index_does_not_name_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "lost.md").write_text("# Lost\n")
    run = build(tmp_path, page="# Page\n")
    assert run.returncode != 0
    assert "lost.md" in run.stderr

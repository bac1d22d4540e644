"""Whoever is called finds the section of each reason and alert, and in it what there is to know."""

import re
from pathlib import Path

import pytest
import yaml

from kvtier.api import reasons

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/runbooks.md"
RULES = ROOT / "charts/kvtier/rules/kvtier.yaml"
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PARTS = ["Means", "Look", "Do", "Do not"]
WELL = ["All is well"]


def sections() -> dict[str, str]:
    """Name -> text of each section, code left out; a heading of another level ends it."""
    parts = re.split(r"^(#+) (.+)$", FENCE.sub("", PAGE.read_text("utf-8")), flags=re.MULTILINE)
    found = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    return {name: text for level, name, text in found if level == "##"}


def alerts() -> set[str]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}


def test_there_is_a_section_for_each_reason_and_alert_and_none_for_anything_else() -> None:
    of_conditions = {each for listed in reasons.CONDITION_REASONS.values() for each in listed}
    assert set(sections()) == of_conditions | set(reasons.EVENT_REASONS) | alerts()


@pytest.mark.parametrize("name", sections())
def test_a_section_says_what_it_means_where_to_look_what_to_do_and_what_not(name: str) -> None:
    marks = re.findall(r"^\*\*([\w ]+)\*\*", sections()[name], re.MULTILINE)
    assert marks == WELL or [each for each in marks if each in PARTS] == PARTS


def test_all_is_well_where_an_alert_fires_is_never_said() -> None:
    assert [name for name in alerts() if "**All is well**" in sections()[name]] == []

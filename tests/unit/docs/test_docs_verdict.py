"""docs/verdict.md names every check in the order of the chain."""

import re
from pathlib import Path

from kvtier.api import reasons

PAGE = Path(__file__).parents[3] / "docs" / "verdict.md"


def test_the_table_has_every_reason_that_a_check_can_give() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(runbooks\.md#\w+\) \|", PAGE.read_text(), re.MULTILINE)
    assert tuple(rows) == reasons.FINDING_REASONS

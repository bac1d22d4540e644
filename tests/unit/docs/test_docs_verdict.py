"""docs/verdict.md names every check in the order of the chain."""

import re
from pathlib import Path

from kvtier.api import reasons
from kvtier.api.load import load_file
from kvtier.breakeven.tier import assess
from kvtier.cli.plan_table import table
from kvtier.placement.chain import examine

PAGE = Path(__file__).parents[3] / "docs" / "verdict.md"


def test_the_table_has_every_reason_that_a_check_can_give() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(runbooks\.md#\w+\) \|", PAGE.read_text(), re.MULTILINE)
    assert tuple(rows) == reasons.FINDING_REASONS


def test_the_example_is_what_plan_prints() -> None:
    match = re.search(r"```console\n\$ kvtier plan -f (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert match is not None
    tier = load_file(str(PAGE.parents[1] / match[1]))
    found = assess(tier.spec)
    printed = table(
        tier, found, findings=examine(tier.spec, assessment=found), access=None, changes={}
    )
    head, tail = match[2].split("\n...\n")
    assert printed.startswith(head)
    assert printed.endswith(tail)

"""docs/engines.md has the table of combinations as the code has it.

``python tests/unit/docs/test_docs_combinations.py`` writes it there again.
"""

import re
from pathlib import Path

from kvtier.api.combinations import markdown, rows

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "engines.md"
PLACE = re.compile(r"(?<=<!-- table: combinations -->\n).*?(?=<!-- end of table -->)", re.DOTALL)


def test_the_page_has_the_table() -> None:
    (found,) = PLACE.findall(PAGE.read_text("utf-8"))
    assert found == markdown(), f"run `python {Path(__file__).relative_to(ROOT)}`"


def test_each_row_names_tests_that_exist_and_other_clients_have_none() -> None:
    for row in rows():
        assert bool(row.tests) == (row.connector != "Generic")
        for name in row.tests:
            assert (ROOT / "tests" / "campaign-engines" / name).is_file()


if __name__ == "__main__":
    PAGE.write_text(PLACE.sub(lambda _: markdown(), PAGE.read_text("utf-8")), "utf-8")

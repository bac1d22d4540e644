"""What pages show of commands that need no cluster is what those commands print."""

import re
from pathlib import Path

import pytest
from commands import printed

ROOT = Path(__file__).parents[3]
PAGES = ("capacity", "concepts", "quickstart", "striping")
BLOCK = re.compile(r"^```console\n\$ (kvtier [^\n]+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = [
    (page, *block)
    for page in PAGES
    for block in BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text("utf-8"))
]


def shows(page: str, output: str) -> bool:
    """Whether the page has the output, but for what lines of three dots stand for."""
    parts = [re.escape(part) for part in re.split(r"^\.\.\.\n", page, flags=re.MULTILINE)]
    return re.fullmatch(r"(?:.*\n)*?".join(parts), output) is not None


@pytest.mark.parametrize(("page", "command", "text"), SHOWN, ids=lambda each: each[:60])
def test_a_command_prints_what_the_page_shows(page: str, command: str, text: str) -> None:
    output = printed(command)
    assert shows(text, output), f"docs/{page}.md: {command} prints\n{output}"


def test_each_page_shows_a_command_but_concepts() -> None:
    assert {page for page, *_ in SHOWN} >= set(PAGES) - {"concepts"}

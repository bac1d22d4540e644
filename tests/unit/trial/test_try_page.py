"""docs/try.md and the README show what ``kvtier try`` prints, but for the machine's figures."""

import re
from pathlib import Path

import pytest
from command_line import kvtier_process

ROOT = Path(__file__).parents[3]
COMMAND = "kvtier try -f deploy/samples/laptop.yaml"


def shape(text: str) -> str:
    """The words, whatever was measured and however lines were broken for it."""
    text = re.sub(r"127\.0\.0\.1:\d+|at least |Valkey [\d.]+", " ", text)
    text = re.sub(r"; [\d.]+ \w+ of memory a rank, not [\d.]+ \w+", "", text)
    return " ".join(re.sub(r"[\d.,]+ (s|ms|[GMK]iB|Gb/s)", "#", text).split())


def block(page: str) -> str:
    match = re.search(rf"\$ {re.escape(COMMAND)}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert match is not None
    return match[1]


@pytest.mark.timeout(300)
def test_the_pages_show_what_the_command_prints(place: Path) -> None:
    printed = kvtier_process(*COMMAND.replace("deploy", f"{ROOT}/deploy").split()[1:]).stdout
    real = shape(printed.decode())
    assert shape(block("docs/try.md")) == real
    for part in block("README.md").split("  ...\n"):
        assert shape(part) in real

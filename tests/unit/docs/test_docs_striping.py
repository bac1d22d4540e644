"""docs/striping.md has the figures of both stripings as the code has them.

``python tests/unit/docs/test_docs_striping.py`` writes them there again.
"""

import re
from pathlib import Path

from commands import printed

from kvtier.breakeven.imbalance import expected_imbalance

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "striping.md"
SAMPLE = "deploy/samples/llama-3.1-70b.yaml"
COMMAND = f"$ sed s/Shard/Hash/ {SAMPLE} | kvtier plan -f -"
TABLE = re.compile(r"(?<=<!-- table: imbalance -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
SHOWN = re.compile(r"(?<=<!-- command: hash -->\n).*?(?=<!-- end of command -->)", re.DOTALL)
RANKS = (2, 4, 8, 16)
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 131072)


def table() -> str:
    lines = [
        f"| tokens of the hit | {' | '.join(f'{ranks} ranks' for ranks in RANKS)} |",
        f"|---|{'---|' * len(RANKS)}",
    ]
    for tokens in LENGTHS:
        shares = [f"{1 / expected_imbalance(tokens // 256, ranks):.0%}" for ranks in RANKS]
        lines.append(f"| {tokens:,} | {' | '.join(s.replace('%', ' %') for s in shares)} |")
    return "\n".join(lines) + "\n"


def hash_plan() -> str:
    text = (ROOT / SAMPLE).read_text("utf-8").replace("Shard", "Hash")
    lines = printed("kvtier plan -f -", stdin=text).splitlines()
    (minimum,) = [line for line in lines if line.startswith("  minimum hit")]
    (row,) = [line for line in lines if line.split()[:1] == ["8,192"]]
    return "\n".join(["```console", COMMAND, "...", minimum, "...", row, "...", "```", ""])


def test_the_page_has_what_unevenness_costs() -> None:
    (found,) = TABLE.findall(PAGE.read_text("utf-8"))
    assert found == table(), f"run `python {Path(__file__).relative_to(ROOT)}`"


def test_the_page_has_the_plan_with_hash() -> None:
    (found,) = SHOWN.findall(PAGE.read_text("utf-8"))
    assert found == hash_plan(), f"run `python {Path(__file__).relative_to(ROOT)}`"


if __name__ == "__main__":
    written = TABLE.sub(lambda _: table(), PAGE.read_text("utf-8"))
    PAGE.write_text(SHOWN.sub(lambda _: hash_plan(), written), "utf-8")

"""docs/pods.md has the flags and annotations that the code reads.

``python tests/unit/docs/test_docs_pods.py`` writes the table there again.
"""

import re
from pathlib import Path

from kvtier.generation.pods.engines import FIELDS, Engine, engines
from kvtier.generation.pods.read import ANNOTATIONS

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "pods.md"
PLACE = re.compile(r"(?<=<!-- table: flags -->\n).*?(?=<!-- end of table -->)", re.DOTALL)


def names(engine: Engine, meaning: str) -> str:
    return ", ".join(f"`{name}`" for name, flag in engine.flags.items() if flag.meaning == meaning)


def markdown() -> str:
    vllm, sglang = (each for each in engines() if each.name in ("vllm", "sglang"))
    meanings = dict.fromkeys(flag.meaning for each in (vllm, sglang) for flag in each.meanings)
    rows = ["| what | is | vLLM | SGLang |", "|---|---|---|---|"]
    for meaning in meanings:
        shown = "modelName" if meaning == "model" else meaning
        kind = "field" if shown in FIELDS else "setting"
        rows.append(f"| `{shown}` | {kind} | {names(vllm, meaning)} | {names(sglang, meaning)} |")
    return "\n".join(rows) + "\n"


def test_the_page_has_every_flag() -> None:
    (found,) = PLACE.findall(PAGE.read_text("utf-8"))
    assert found == markdown(), f"run `python {Path(__file__).relative_to(ROOT)}`"


def test_the_page_has_every_annotation_variable_and_command() -> None:
    page = PAGE.read_text("utf-8")
    table = PLACE.findall(page)[0]
    for engine in engines():
        for name in engine.environment:
            assert f"`{name}`" in page.replace(table, "")
    for name in ANNOTATIONS:
        assert f"`{name}`" in page


if __name__ == "__main__":
    PAGE.write_text(PLACE.sub(lambda _: markdown(), PAGE.read_text("utf-8")), "utf-8")

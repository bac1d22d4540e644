"""docs/break-even.md quotes the code: its commands print what it shows, its figures are computed.

``python tests/unit/cli/test_break_even_page.py`` writes the output of its commands and
its picture anew.
"""

import re
from pathlib import Path

import pytest
import yaml
from command_line import kvtier

from kvtier.api.load import parse_tier
from kvtier.breakeven import access, sizes
from kvtier.breakeven.imbalance import expected_imbalance
from kvtier.breakeven.tier import assess

PAGE = Path(__file__).parents[3] / "docs" / "break-even.md"
PICTURE = PAGE.with_suffix(".svg")
CONSOLE = re.compile(r"```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)```", re.DOTALL)
EXAMPLE = re.compile(r"```yaml\n(?P<tier>.*?)```", re.DOTALL)


def example() -> str:
    match = EXAMPLE.search(PAGE.read_text())
    assert match is not None
    return match["tier"]


def run(command: str, folder: Path) -> str:
    file = folder / "tier.yaml"
    file.write_text(example())
    program, *arguments = command.split()
    assert program == "kvtier"
    completed = kvtier(*(file if argument == file.name else argument for argument in arguments))
    assert completed.stderr == b""
    return completed.stdout.decode()


def quoted() -> list[tuple[str, str]]:
    return [(match["command"], match["output"]) for match in CONSOLE.finditer(PAGE.read_text())]


def test_the_page_has_its_four_examples() -> None:
    assert len(quoted()) == 4


@pytest.mark.parametrize(("command", "output"), quoted())
def test_a_quoted_command_prints_what_the_page_shows(
    command: str, output: str, tmp_path: Path
) -> None:
    assert run(command, tmp_path) == output


def picture(folder: Path) -> str:
    tier, drawn = folder / "tier.yaml", folder / "drawn.svg"
    tier.write_text(example())
    assert kvtier("plan", "-f", tier, "--plot", drawn).stderr == b""
    return drawn.read_text()


def test_the_picture_is_the_one_that_the_code_draws(tmp_path: Path) -> None:
    assert picture(tmp_path) == PICTURE.read_text()
    assert f"]({PICTURE.name})" in PAGE.read_text()


def test_figures_in_the_text_are_those_of_the_code() -> None:
    found = assess(parse_tier(yaml.safe_load(example())).spec)
    llama = sizes.gqa_bytes_per_token(layers=80, kv_heads=8, head_dim=128, element_bytes=2)
    deepseek = sizes.mla_bytes_per_token(
        layers=61, kv_lora_rank=512, qk_rope_head_dim=64, element_bytes=2
    )
    copies = sizes.gqa_replication(kv_heads=4, tensor=8)
    spread = [f"{expected_imbalance(chunks, 8):.2f}" for chunks in (32, 64, 128, 512)]
    offload = access.offload_seconds_per_token(layers=80, round_trip=0.020)
    text = " ".join(PAGE.read_text().split())
    assert copies == 2
    assert found.ratio is not None
    assert found.minimum_hit is not None
    for sentence in (
        f"has {llama:,} bytes, DeepSeek-V3 (61 layers, 512 + 64) {deepseek:,}.",
        f"{spread[0]} for 32 chunks (8k tokens), {spread[1]} for 64, {spread[2]} for 128, "
        f"{spread[3]} for 512.",
        f"B* is {llama:,} bytes x 5,000 tokens/s = {found.break_even / 1e9:.4f}e9 bytes/s = "
        f"{found.break_even * 8 / 1e9:.1f} Gb/s.",
        f"The link gives 25 Gb/s, {found.ratio:.2f} times as much.",
        f"T0 is {(found.t0_seconds or 0) * 1000:.0f} ms, so a hit must be at least "
        f"{found.minimum_hit:,} tokens long.",
        f"is {offload:.1f} s a token for 80 layers at 20 ms.",
        f"({access.FABRIC_ROUND_TRIP_SECONDS * 1000:.2f} ms at most)",
    ):
        assert sentence in text


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        written = CONSOLE.sub(
            lambda match: (
                f"```console\n$ {match['command']}\n{run(match['command'], Path(folder))}```"
            ),
            PAGE.read_text(),
        )
        PICTURE.write_text(picture(Path(folder)))
    PAGE.write_text(written)

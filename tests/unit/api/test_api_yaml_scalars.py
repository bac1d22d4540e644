"""Unquoted scalars that YAML readers disagree about are refused with their line, and no others."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tiers import SMALLEST

from kvtier.api.load import InvalidTier, load_file
from kvtier.api.yaml_scalars import ambiguity

ROOT = Path(__file__).parents[3]

REFUSED = {
    "yes": 'true to YAML 1.1 and kubectl, but text to YAML 1.2; write "yes" or true',
    "Off": 'false to YAML 1.1 and kubectl, but text to YAML 1.2; write "Off" or false',
    "y": 'text to YAML 1.1 and YAML 1.2, but true to kubectl; write "y" or true',
    "0777": '511 to YAML 1.1 and kubectl, but 777 to YAML 1.2; write "0777" or 511 or 777',
    "0o777": 'text to YAML 1.1, but 511 to kubectl and YAML 1.2; write "0o777" or 511',
    "0X1F": 'text to YAML 1.1 and YAML 1.2, but 31 to kubectl; write "0X1F" or 31',
    "-0x1F": '-31 to YAML 1.1 and kubectl, but text to YAML 1.2; write "-0x1F" or -31',
    "0b101": '5 to YAML 1.1 and kubectl, but text to YAML 1.2; write "0b101" or 5',
    "08": 'text to YAML 1.1, but 8 to kubectl and YAML 1.2; write "08" or 8',
    "1_000": '1000 to YAML 1.1 and kubectl, but text to YAML 1.2; write "1_000" or 1000',
    "12:34:56": ('45296 to YAML 1.1, but text to kubectl and YAML 1.2; write "12:34:56" or 45296'),
    "1e3": 'text to YAML 1.1, but 1000 to kubectl and YAML 1.2; write "1e3" or 1000',
    "1.5e3": 'text to YAML 1.1, but 1500 to kubectl and YAML 1.2; write "1.5e3" or 1500',
    "-.5": 'text to YAML 1.1, but -0.5 to kubectl and YAML 1.2; write "-.5" or -0.5',
    "2026-11-29": 'a date to YAML 1.1, but text to kubectl and YAML 1.2; write "2026-11-29"',
    "2026-13-45": 'a date to YAML 1.1, but text to kubectl and YAML 1.2; write "2026-13-45"',
    # Seven digits of a commit.
    "1234e56": 'text to YAML 1.1, but 1.234e+59 to kubectl and YAML 1.2; write "1234e56"',
    "12e4567": 'text to YAML 1.1 and kubectl, but Infinity to YAML 1.2; write "12e4567"',
}
TAKEN = (
    *("true", "False", "TRUE", "null", "~", "Null", "", "tRUE", "nULL", "None"),
    *("0", "-1", "+7", "007", "0x1F", "1605565", "12345678901234567890"),
    *("0.5", "1.10", "9.1", ".5", "5.", "1.5e+3", "1.5E-3", "0.20"),
    *("64Gi", "25G", "50us", "330ms", "1,000", "1.2.3", "0o8", "0b2", "1e", "nan", "_1"),
    *("zone", "Yes we can", "nope", "off-peak", "2026-1", "12:34:5a", "a:b", "glm-5.3"),
)


@pytest.mark.parametrize(("text", "said"), REFUSED.items())
def test_a_scalar_of_two_meanings_is_told_with_both_and_the_fix(text: str, said: str) -> None:
    assert ambiguity(text) == f"unquoted {text} is {said}"


@pytest.mark.parametrize("text", TAKEN)
def test_a_scalar_of_one_meaning_is_taken(text: str) -> None:
    assert ambiguity(text) is None


@pytest.mark.parametrize("text", REFUSED)
def test_every_suggested_value_is_taken_and_quotes_make_it_text(text: str) -> None:
    fix = str(ambiguity(text)).split("; write ")[1]
    quoted, *values = fix.split(" or ")
    assert yaml.safe_load(quoted) == text
    assert all(ambiguity(value) is None for value in values)


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Writes the smallest tier with one more line in its model."""

    def write(line: str) -> Path:
        file = tmp_path / "tier.yaml"
        text = yaml.safe_dump(SMALLEST, sort_keys=False)
        file.write_text(text.replace("  pool:\n", f"    {line}\n  pool:\n", 1))
        return file

    return write


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("line", ["identity: {{a: {}}}", "identity: {{{}: a}}", "salt: {}"])
def test_as_a_value_and_as_a_key_it_is_refused_with_its_line(
    written: Any, line: str, text: str
) -> None:
    file = written(line.format(text))
    with pytest.raises(InvalidTier) as refused:
        load_file(str(file))
    [problem] = refused.value.errors
    number = file.read_text().splitlines().index(f"    {line.format(text)}") + 1
    assert problem == f"{file}: line {number} {ambiguity(text)}"


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("form", ['"{}"', "'{}'", "!!str {}"])
def test_with_quotes_or_a_tag_it_is_text(written: Any, form: str, text: str) -> None:
    file = written(f"salt: {form.format(text)}")
    assert load_file(str(file)).spec.model.salt == text


def test_a_block_of_text_is_no_scalar_of_two_meanings(written: Any) -> None:
    assert load_file(str(written("salt: |-\n      yes"))).spec.model.salt == "yes"


@given(text=st.text(alphabet="0123456789abefoxyxnEXOB+-._:~T ", max_size=12).map(str.strip))
def test_what_is_left_as_text_is_text_to_yaml_1_2_as_well(text: str) -> None:
    if ambiguity(text) is not None:
        return
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError):  # no scalar, or none that can be read
        return
    if value == text:
        # YAML 1.2.2, 10.3.2: nothing that the core schema takes for another type is left as text.
        core = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+|0x[0-9a-fA-F]+"
        assert re.fullmatch(core, text) is None


def manifests() -> list[tuple[str, str]]:
    """Every tier of the samples, the demo, the tests and the documentation."""
    found = [
        (f"{path.relative_to(ROOT)}", path.read_text())
        for folder in ("deploy/samples", "tests/livecluster")
        for path in sorted((ROOT / folder).glob("*.yaml"))
    ]
    for path in sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]):
        blocks = re.findall(r"```yaml\n(.*?)```", path.read_text(), re.DOTALL)
        found += [(f"{path.name}, block {n}", block) for n, block in enumerate(blocks, 1)]
    return [(name, text) for name, text in found if "kind: KVCacheTier" in text]


def test_manifests_are_found() -> None:
    assert len(manifests()) >= 7


@pytest.mark.parametrize(("name", "text"), manifests(), ids=lambda value: value[:40])
def test_no_scalar_of_ours_is_refused(name: str, text: str) -> None:
    scalars = [
        event.value
        for event in yaml.parse(text)
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0]
    ]
    assert [problem for value in scalars if (problem := ambiguity(value))] == [], name

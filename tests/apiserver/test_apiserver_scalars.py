"""What kvtier says of kubectl's reading of a scalar is what the real kubectl does with it."""

import json
import math
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver_process import kubectl_path

from kvtier.api.yaml_scalars import ambiguity, kubectl_reading
from programs import CannotStart

ALPHABET = "0123456789abefoxynEXOB+-._:~"
WORDS = (
    *("y", "Y", "n", "N", "yes", "Yes", "YES", "no", "No", "NO", "on", "On", "off", "OFF"),
    *("true", "True", "TRUE", "tRUE", "false", "null", "Null", "NULL", "~", "nULL", "yEs"),
    *("0777", "0o17", "0O17", "08", "00", "0x1F", "0X1f", "-0x1f", "+0x1f", "0b11", "-0B1"),
    *("1_000", "_1", "1_", "1__0", "0x_1", "0_7", "1e3", "1E+3", "1.e3", ".5", "-.5", "._5"),
    *("12:34:56", "1:2.5", "2026-11-29", "2026-1-2", "2026-13-45", "2026-11-29T00:00:00Z"),
    *("1e400", "123e4567", "1234e56", "5.", "-0", "+1", "1,000", "64Gi", "nan", "inf"),
)


def scalars() -> list[str]:
    """Words that readers disagree about, and random ones that look like numbers."""
    chance = random.Random(5)
    found = [
        "".join(chance.choice(ALPHABET) for _ in range(chance.randint(1, 7))) for _ in range(20_000)
    ]
    return [text for text in [*WORDS, *found] if _plain(text)]


def _plain(text: str) -> bool:
    """Whether YAML takes the text for one plain scalar, of a size that JSON numbers can hold."""
    if "." in text and any(word in text.lower() for word in ("inf", "nan")):
        return False
    try:
        node = yaml.compose(f"[{text}]", yaml.SafeLoader)
    except yaml.YAMLError:
        return False
    # A colon at an end is an empty key or value to kubectl's parser.
    return [each.value for each in node.value] == [text] and text.strip(":") == text


@pytest.fixture(scope="module")
def read() -> dict[str, Any]:
    """What kubectl makes of each scalar."""
    texts = scalars()
    lines = ["apiVersion: v1", "kind: Anything", "metadata: {name: x}", "values:"]
    document = "\n".join([*lines, *(f"- [{text}]" for text in texts)])
    try:
        program = kubectl_path()
    except CannotStart as reason:
        pytest.fail(str(reason), pytrace=False)
    done = subprocess.run(
        [program, "label", "--local", "-f", "-", "a=b", "-o", "json"],
        input=document,
        env={"KUBECONFIG": "/dev/null", "HOME": str(Path("/nonexistent"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    values = [value for [value] in json.loads(done.stdout)["values"]]
    return dict(zip(texts, values, strict=True))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or not isinstance(one, int | float):
        return type(one) is type(other) and bool(one == other)
    # kubectl prints large whole numbers as floats.
    number = isinstance(other, int | float) and not isinstance(other, bool)
    return number and math.isclose(one, other, rel_tol=1e-15)


def test_kubectl_reads_scalars_as_kvtier_says(read: dict[str, Any]) -> None:
    wrong = {
        text: (value, kubectl_reading(text))
        for text, value in read.items()
        if not same(value, kubectl_reading(text))
    }
    assert wrong == {}


def test_what_kvtier_takes_is_the_same_to_kubectl(read: dict[str, Any]) -> None:
    taken = {text: value for text, value in read.items() if ambiguity(text) is None}
    assert len(taken) > 1000
    wrong = {
        text: (value, yaml.safe_load(f"[{text}]")[0])
        for text, value in taken.items()
        if not same(value, yaml.safe_load(f"[{text}]")[0])
    }
    assert wrong == {}

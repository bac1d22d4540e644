"""The public models: their configs, and the table of what each must give."""

import json
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
TABLE: dict[str, list[dict[str, Any]]] = yaml.safe_load((HERE / "table.yaml").read_text())
MODELS = TABLE["models"]


def config(name: str) -> dict[str, Any]:
    """The config.json of a public model, as far as it matters."""
    found: dict[str, Any] = json.loads((HERE / "configs" / f"{name}.json").read_text())
    return found

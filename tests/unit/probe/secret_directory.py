"""The probe's Secret as a pod has it mounted."""

import json
from pathlib import Path

from kvtier.probe.config import CONFIG_FILE, ProbeConfig, document


def write_secret(directory: Path, config: ProbeConfig) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / CONFIG_FILE).write_text(json.dumps(document(config)))
    (directory / "token").write_text(config.password)
    if config.ca is not None:
        (directory / "ca.crt").write_text(config.ca)
    return directory

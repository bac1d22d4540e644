"""A real Prometheus on loopback, over targets that a test gives, with kvtier's own rules."""

import json
import math
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from webhook_process import free_port

RULES = Path(__file__).parents[3] / "charts/kvtier/rules/kvtier.yaml"
INTERVAL = "1s"


@dataclass(frozen=True, slots=True)
class Prometheus:
    port: int

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Rows of an instant vector, those that are no number left out. An error that Prometheus
        tells of fails the test."""
        asked = urllib.parse.urlencode({"query": expression})
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{asked}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                data = json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{expression}: {refused.read().decode()}") from None
        if data["resultType"] == "scalar":
            data["result"] = [{"metric": {}, "value": data["result"]}]
        return [row for row in data["result"] if not math.isnan(float(row["value"][1]))]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=10):
                return True
        except OSError:
            return False


def rules_at_once() -> dict[str, Any]:
    """The chart's, without a ``for:``."""
    rules: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    return rules


@contextmanager
def prometheus(folder: Path, *, targets: Mapping[str, int]) -> Iterator[Prometheus]:
    """``targets``: job -> port on loopback. Its files are in ``folder``; it is gone at the end."""
    binary = shutil.which("prometheus")
    assert binary, "prometheus is missing: `deploy/local/cluster build` installs it"
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules_at_once()))
    config = {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            {
                "job_name": job,
                "honor_labels": True,
                "scrape_timeout": INTERVAL,
                "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
            }
            for job, port in targets.items()
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    found = Prometheus(free_port())
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{found.port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        end = time.monotonic() + 30
        while not found.is_ready():
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < end, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)
        yield found
    finally:
        process.kill()
        process.wait()

"""The chart's dashboards: their panels, and their queries as Grafana would send them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from named_metrics import metrics_in

FOLDER = Path(__file__).parents[1] / "charts/kvtier/dashboards"
MAY_BE_EMPTY = {
    "ALERTS": "nothing fires",
    "kvtier_admission_limit_tokens_per_second": "Open: no limit",
    "kvtier_limiter_share_tokens_per_second": "Open: no limit",
    "kvtier_admission_policy_requests_per_second": "no policy of Envoy Gateway's",
    "kvtier_generation_drain_started_timestamp_seconds": "nothing drains",
    "kvtier_tier_certificate_expiry_timestamp_seconds": "without store.tls",
    "kvtier_webhook_certificate_expiry_timestamp_seconds": "the webhook is not installed",
    "kvtier_webhook_review_duration_seconds": "the webhook is not installed",
    "kvtier_webhook_reviews_total": "the webhook is not installed",
    "kvtier_engine_failed_loads_total": "engines are not LMCache",
    "kvtier_observed_prefill_tokens_per_second": "too few requests came so far",
}
"""Metric -> when a healthy tier has no series of it. All others must return something."""
LISTS_OF_FAULTS = {"Conditions that are not True"}
"""Panels that are empty when all is well."""
_LABEL_VALUES = re.compile(r"label_values\((.+), *(\w+)\)")
_VARIABLE = re.compile(r"\$(\w+)")


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel, or of a variable: then ``panel`` is its name with a ``$``, and the
    expression is the series whose label Grafana would offer. ``expr`` is filled in."""

    dashboard: str
    panel: str
    expr: str

    @property
    def metrics(self) -> set[str]:
        return metrics_in(self.expr) | ({"ALERTS"} if "ALERTS{" in self.expr else set())

    @property
    def may_be_empty(self) -> bool:
        return self.panel in LISTS_OF_FAULTS or bool(self.metrics & MAY_BE_EMPTY.keys())

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel}: {self.expr}"


def dashboards() -> dict[str, dict[str, Any]]:
    """File name -> dashboard."""
    return {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All of them, rows and what is folded into rows included."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", [])


def variables(board: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = board["templating"]["list"]
    return found


def dashboard_queries(
    *, namespace: str = "prod", tier: str = "llama", window: str = "1m"
) -> list[Query]:
    """Every query of every dashboard, for one tier; ``window`` is what rates look back over."""
    values = {"namespace": namespace, "tier": tier, "__rate_interval": window}

    def filled(expr: str) -> str:
        return _VARIABLE.sub(lambda found: values[found[1]], expr)

    queries = []
    for board in dashboards().values():
        for variable in variables(board):
            if variable["type"] == "query":
                series = _LABEL_VALUES.fullmatch(variable["query"]["query"])
                assert series, variable["query"]
                queries.append(Query(board["uid"], f"${variable['name']}", filled(series[1])))
        for panel in panels(board):
            queries.extend(
                Query(board["uid"], panel["title"], filled(target["expr"]))
                for target in panel.get("targets", ())
            )
    return queries

"""Which metrics kvtier's processes have, and which ones a PromQL expression names."""

import re
from functools import cache

from prometheus_client import CollectorRegistry

from kvtier.limiter.gates import Gates
from kvtier.limiter.metrics import registry_of
from kvtier.metrics import Metrics
from kvtier.webhook.metrics import WebhookMetrics
from limiter_process import FixedTiers

_STRING = re.compile(r'"(?:\\.|[^"\\])*"' + r"|'(?:\\.|[^'\\])*'|`[^`]*`")
_NAME = re.compile(r"\b(?:kvtier|apiserver|process)_[a-z0-9_]+\b")
_PART = re.compile(r"_(?:bucket|sum|count)$")
"""What Prometheus has of a histogram."""


def registries() -> dict[str, CollectorRegistry]:
    """Process -> what it exports, without any tier."""
    return {
        "controller": Metrics().registry,
        "limiter": registry_of(Gates(FixedTiers(), clock=lambda: 0.0), failures=lambda: 0),
        "webhook": WebhookMetrics().registry,
    }


@cache
def exported_metrics() -> dict[str, str]:
    """Name as scraped -> type, of every process of kvtier's: ``kvtier_*`` and ``process_*``."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for registry in registries().values()
        for family in registry.collect()
    }


def metrics_in(expression: str) -> set[str]:
    """Names of metrics of kvtier, the API server and processes; of a histogram's parts its own.

    Strings do not count: a label's value that looks like a metric is none.
    """
    exported = exported_metrics()
    names = set(_NAME.findall(_STRING.sub('""', expression)))
    return {
        _PART.sub("", name) if exported.get(_PART.sub("", name)) == "histogram" else name
        for name in names
    }

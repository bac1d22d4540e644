"""The tables of metrics in the docs, generated: ``python -m kvtier.metrics_reference [DOCS]``.

Names, types and labels are the code's own; what a metric says beyond its help text is in
``metrics_texts.yaml``. A page has places for the tables, from ``<!-- metrics: NAME -->`` to
``<!-- end of metrics -->``.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from kvtier.limiter.gates import Gates
from kvtier.limiter.metrics import registry_of
from kvtier.limiter.tier import TierView
from kvtier.metrics import Metrics
from kvtier.series import Series
from kvtier.webhook.metrics import WebhookMetrics

PREFIX: Final = "kvtier_"
SHARED: Final = "kvtier_build_info"
"""In each process: told once, of the controller."""
END: Final = "<!-- end of metrics -->\n"
PAGES: Final = {"controller": "metrics.md", "webhook": "metrics.md", "limiter": "limiter.md"}
"""By process the page with its table."""


class _NoTiers:
    """Of a limiter that knows none."""

    def get(self, namespace: str, name: str) -> TierView | None:
        del namespace, name
        return None

    def all(self) -> Iterable[TierView]:
        return ()

    def set_offered(self, namespace: str, name: str, tokens_per_second: float) -> None:
        del namespace, name, tokens_per_second


@dataclass(frozen=True, slots=True)
class Described:
    """One metric as it is scraped; ``labels`` in the order of the code."""

    name: str
    type: str
    labels: tuple[str, ...]


def described() -> dict[str, list[Described]]:
    """By process all its metrics, in the order in which they are shown."""
    metrics = Metrics()
    limiter = registry_of(Gates(_NoTiers(), clock=lambda: 0.0), failures=lambda: 0)
    return {
        "controller": [*_own(metrics.process), *_of_tiers(metrics.tiers)],
        "webhook": [each for each in _own(WebhookMetrics().registry) if each.name != SHARED],
        "limiter": [each for each in _own(limiter) if each.name != SHARED],
    }


def texts() -> Mapping[str, str]:
    """What each metric says, in Markdown."""
    found: dict[str, str] = yaml.safe_load(
        files("kvtier").joinpath("metrics_texts.yaml").read_text(encoding="utf-8")
    )
    return found


def table(process: str) -> str:
    """The table of one process. Raises KeyError for a metric without a text."""
    says = texts()
    rows = [
        (f"`{each.name}`", each.type, ", ".join(f"`{of}`" for of in each.labels), says[each.name])
        for each in described()[process]
    ]
    head = ("metric", "type", "labels", "what it says")
    lines = [head, ("---",) * 4, *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def page(text: str, process: str) -> str:
    """A page's text with the table in its place. Raises ValueError for a page without one."""
    begin = f"<!-- metrics: {process} -->\n"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"the page has no place for the metrics of the {process}")
    return f"{before}{begin}{table(process)}{END}{after}"


def _own(registry: CollectorRegistry) -> Iterator[Described]:
    """Those of prometheus-client's, which knows labels, if privately."""
    collectors: list[Any] = list(registry._collector_to_names)
    for collector in collectors:
        labels: Any = getattr(collector, "_labelnames", None)
        if labels is not None:
            yield from (_described(each, tuple(labels)) for each in collector.describe())
        else:
            yield from _collected(collector.collect())


def _collected(found: Iterable[Metric]) -> Iterator[Described]:
    for family in found:
        if family.name.startswith(PREFIX):
            labels: Any = getattr(family, "_labelnames", ())
            yield _described(family, tuple(labels))


def _of_tiers(tiers: Series) -> Iterator[Described]:
    for family in tiers.families:
        name = f"{family.name}_total" if family.kind == "counter" else family.name
        yield Described(name, family.kind, family.labels)


def _described(family: Metric, labels: tuple[str, ...]) -> Described:
    total = "_total" if family.type == "counter" else ""
    return Described(f"{family.name}{total}", family.type, labels)


def main(docs: Path) -> None:
    """Write the tables into the pages of the directory."""
    for process, name in PAGES.items():
        path = docs / name
        path.write_text(page(path.read_text(encoding="utf-8"), process), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))

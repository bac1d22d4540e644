"""Series of tiers: a thousand tiers of eight ranks have two hundred thousand of them.

A client library's gauge takes a kilobyte and a lock for each series, and seconds to write them all.
Here a series is one float in a table, and a scrape writes tables to text piece by piece. What
comes out is the same: ``collect`` gives prometheus-client's families, and ``text`` what its
``generate_latest`` makes of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Key = tuple[str, str]
"""(namespace, name) of a tier."""
Labels = tuple[str, ...]
TIER: Final = ("namespace", "tier")
MOST_TEMPLATES: Final = 4096
"""Beginnings of lines that a family keeps: ids of generations come and go."""
_PIECE: Final = 4096


class Family:
    """One metric, with the labels ``namespace``, ``tier`` and ``more``.

    A counter may be set too: one that a server counts begins anew with the server, and Prometheus
    takes a smaller value for that.
    """

    def __init__(
        self, kind: Literal["gauge", "counter"], name: str, text: str, more: Labels
    ) -> None:
        self.kind = kind
        self.name = name
        self.text = text
        self.labels = (*TIER, *more)
        self._more = more
        self._one: dict[Key, float] = {}
        self._many: dict[Key, dict[Labels, float]] = {}
        self._templates = _Templates(f"{name}_total" if kind == "counter" else name, more)

    def set(self, key: Key, value: float | None, *more: str) -> None:
        """``more`` are the values of the labels beyond the tier's. None: no such series."""
        assert len(more) == len(self._more), self.name
        if not more:
            if value is None:
                self._one.pop(key, None)
            else:
                self._one[key] = float(value)
        elif value is not None:
            self._many.setdefault(key, {})[more] = float(value)
        elif key in self._many:
            self._many[key].pop(more, None)

    def inc(self, key: Key, *more: str, by: float = 1.0) -> None:
        """0 makes a series that can increase later."""
        known = self._many.get(key, {}).get(more, 0.0) if more else self._one.get(key, 0.0)
        self.set(key, known + by, *more)

    def replace(self, key: Key, values: Mapping[Labels, float]) -> None:
        """All series of a tier at once: what is not among them goes away."""
        self._many[key] = {more: float(value) for more, value in values.items()}

    def get(self, key: Key, *more: str) -> float | None:
        return self._many.get(key, {}).get(more) if more else self._one.get(key)

    def forget(self, key: Key) -> None:
        """Drop a tier's series."""
        self._one.pop(key, None)
        self._many.pop(key, None)

    def family(self) -> Metric:
        """The metric as prometheus-client has it, with all its samples."""
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        found = kind(self.name, self.text, labels=self.labels)
        for key, more, value in self._samples():
            found.add_metric([*key, *more], value)
        return found

    def lines(self) -> Iterator[str]:
        """The samples in Prometheus' text format, some thousands at a time.

        Between two pieces others may change what there is: each tier is whole in one of them.
        """
        lines: list[str] = []
        # Python's own words for a float are what Prometheus' parser takes as well.
        if self._one:
            template = self._templates[()]
            lines += [f"{template % key}{value!r}\n" for key, value in self._one.items()]
        templates = self._templates
        for key in list(self._many):
            series = self._many.get(key, {})
            lines += [f"{templates[more] % key}{value!r}\n" for more, value in series.items()]
            if len(lines) >= _PIECE:
                yield "".join(lines)
                lines = []
        yield "".join(lines)

    def head(self, *, openmetrics: bool) -> str:
        """Its HELP and TYPE."""
        counts = self.kind == "counter" and not openmetrics
        name = f"{self.name}_total" if counts else self.name
        text = _escaped(self.text) if openmetrics else _escaped(self.text, quote=False)
        return f"# HELP {name} {text}\n# TYPE {name} {self.kind}\n"

    def _samples(self) -> Iterator[tuple[Key, Labels, float]]:
        for key, value in self._one.items():
            yield key, (), value
        for key, series in self._many.items():
            for more, value in series.items():
                yield key, more, value


class _Templates(dict[Labels, str]):
    """Of a family: by the values of its labels beyond the tier's a line up to its sample's value,
    with places for namespace and tier."""

    def __init__(self, name: str, more: Labels) -> None:
        super().__init__()
        self._name = name
        self._more = more

    def __missing__(self, more: Labels) -> str:
        values = dict(zip(self._more, map(_quoted, more), strict=True))
        labels = {**dict.fromkeys(TIER, "%s"), **values}
        inside = ",".join(f'{name}="{labels[name]}"' for name in sorted(labels))
        if len(self) >= MOST_TEMPLATES:
            self.clear()
        self[more] = template = f"{self._name}{{{inside}}} "
        return template


class Series(Collector):
    """All metrics of tiers."""

    def __init__(self) -> None:
        self.families: list[Family] = []

    def gauge(self, name: str, text: str, *more: str) -> Family:
        return self._add(Family("gauge", name, text, more))

    def counter(self, name: str, text: str, *more: str) -> Family:
        """Without ``_total``, which the text has."""
        return self._add(Family("counter", name, text, more))

    def _add(self, family: Family) -> Family:
        self.families.append(family)
        return family

    def forget(self, key: Key) -> None:
        """Drop every series of a deleted tier."""
        for family in self.families:
            family.forget(key)

    def describe(self) -> Iterable[Metric]:
        """Names for the registry, without samples."""
        return [Metric(each.name, each.text, each.kind) for each in self.families]

    def collect(self) -> Iterator[Metric]:
        for family in self.families:
            yield family.family()

    def text(self, *, openmetrics: bool = False) -> Iterator[str]:
        """Everything in Prometheus' text format, or in OpenMetrics' without its end, in pieces."""
        for family in self.families:
            yield family.head(openmetrics=openmetrics)
            yield from family.lines()


def _escaped(text: str, *, quote: bool = True) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quote else text


def _quoted(text: str) -> str:
    return _escaped(text).replace("%", "%%")

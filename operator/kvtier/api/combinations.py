"""Which connector, adapter, striping, attention and parallelism an engine can run.

The one table (``combinations.yaml``): what is not in it is refused, and what is nearest to it in
the table is named. A connector's other release gets rows of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from importlib import resources
from itertools import product
from typing import Any, Final

import yaml

from kvtier.api.types import Adapter, Connector, KVCacheTierSpec, Striping


class Stored(StrEnum):
    """How often the ranks together store the KV of a token."""

    HEADS = "heads"
    ONCE = "once"
    EVERY_RANK = "every rank"
    GROUPS = "groups"
    DECLARED = "declared"


STORED_WORDS: Final = {
    Stored.HEADS: "once; tensor / kvHeads times with fewer KV heads than tensor",
    Stored.ONCE: "once",
    Stored.EVERY_RANK: "by each rank",
    Stored.GROUPS: "KV heads as of gqa; latents by each rank beside heads or states, else once",
    Stored.DECLARED: "as declared",
}


class Servers(StrEnum):
    """How many LMCache servers one engine has."""

    ENGINE = "engine"
    RANK = "rank"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Row:
    """One combination that works, and what it leaves free. ``tests`` are files of
    tests/campaign-engines."""

    connector: Connector
    series: str
    adapter: Adapter
    striping: Striping
    attention: str
    pipeline: bool
    decode_context: bool
    one_rank: bool
    stored: Stored
    servers: Servers
    tests: tuple[str, ...]
    note: str

    def client(self, ranks: int) -> str:
        """What talks to the ranks, in a line."""
        if self.connector is Connector.GENERIC:
            return "a client of your own, by connection.json"
        adapter = {Adapter.PLUGIN: "kvtier's plugin", Adapter.STOCK: "its own adapter"}
        where = {
            Servers.ENGINE: "one LMCache server for each engine",
            Servers.RANK: f"{ranks} LMCache servers for each engine, one per rank",
            Servers.NONE: "in the engine's workers",
        }
        return f"{self.connector} {self.series} with {adapter[self.adapter]}, {where[self.servers]}"

    def document(self) -> dict[str, Any]:
        """The row as ``kvtier plan`` prints it, with the names of the file."""
        document: dict[str, Any] = {
            "connector": self.connector.value,
            "series": self.series,
            "adapter": self.adapter.value,
            "striping": self.striping.value,
            "layout": self.attention,
            "stored": self.stored.value,
            "servers": self.servers.value,
            "tests": list(self.tests),
        }
        return document | ({"note": self.note} if self.note else {})


@dataclass(frozen=True, slots=True)
class _Choice:
    """The fields of a spec that decide, and may be changed to get to a row."""

    connector: Connector
    adapter: Adapter
    striping: Striping
    pipeline: int
    decode_context: int
    prefill_context: int
    tensor: int


_PATHS: Final = {
    "connector": "spec.pool.engine.connector",
    "adapter": "spec.pool.engine.adapter",
    "striping": "spec.pool.striping",
    "pipeline": "spec.pool.parallelism.pipeline",
    "decode_context": "spec.pool.parallelism.decodeContext",
    "prefill_context": "spec.pool.parallelism.prefillContext",
    "tensor": "spec.pool.parallelism.tensor",
}
# Another connector is another installation of the engines, another striping another tier, and a
# client of one's own is no way out for who has LMCache.
_COSTS: Final = {"connector": 10, "striping": 100}
_GENERIC_COST: Final = 1000


@cache
def rows() -> tuple[Row, ...]:
    """The table."""
    text = resources.files(__package__).joinpath("combinations.yaml").read_text("utf-8")
    return tuple(
        Row(
            connector=Connector(entry["connector"]),
            series=entry["series"],
            adapter=Adapter(entry["adapter"]),
            striping=Striping(entry["striping"]),
            attention=name,
            pipeline=layout.get("pipeline", False),
            decode_context=layout.get("decodeContext", False),
            one_rank=entry.get("ranks") == "one",
            stored=Stored(layout["stored"]),
            servers=Servers(entry["servers"]),
            tests=(*entry["tests"], *layout.get("tests", ())),
            note=layout.get("note", ""),
        )
        for entry in yaml.safe_load(text)
        for name, layout in entry["layouts"].items()
    )


def attention(spec: KVCacheTierSpec) -> str:
    """The layout member that is set, by its name on the wire."""
    layout = spec.model.layout
    if layout.gqa is not None:
        return "gqa"
    if layout.mla is not None:
        return "mla"
    return "groups" if layout.groups is not None else "bytesPerToken"


def row_of(spec: KVCacheTierSpec) -> Row | None:
    """The row that an engine of this spec runs by; None when there is none."""
    return _row(spec, _choice(spec))


def problems(spec: KVCacheTierSpec) -> list[str]:
    """Why no engine can run this combination and what is nearest; empty when one can."""
    if row_of(spec) is not None:
        return []
    chosen, changed = _choice(spec), _nearest(spec)
    first = next(iter(changed), "striping")
    fix = " and ".join(f"{_PATHS[name]}: {value}" for name, value in changed.items())
    advice = f"set {fix}" if fix else "no other value of these fields works either"
    return [f"{_PATHS[first]}: no engine runs {_told(spec, chosen)}; {advice}"]


def _choice(spec: KVCacheTierSpec) -> _Choice:
    pool = spec.pool
    parallel = pool.parallelism
    return _Choice(
        connector=pool.engine.connector,
        adapter=pool.engine.adapter,
        striping=pool.striping,
        tensor=parallel.tensor or pool.ranks,
        pipeline=parallel.pipeline,
        decode_context=parallel.decode_context,
        prefill_context=parallel.prefill_context,
    )


def _row(spec: KVCacheTierSpec, choice: _Choice) -> Row | None:
    if choice.prefill_context > 1:
        # No released engine stores its KV that way: the keys carry no chunk index.
        return None
    version, kind = spec.pool.engine.version, attention(spec)
    wanted = (choice.connector, version, choice.adapter, choice.striping, kind)
    for row in rows():
        found = (row.connector, row.series, row.adapter, row.striping, row.attention)
        fits = (
            (row.pipeline or choice.pipeline == 1)
            and (row.decode_context or choice.decode_context == 1)
            and (not row.one_rank or spec.pool.ranks == 1)
        )
        if found == wanted and fits:
            return row
    return None


def _nearest(spec: KVCacheTierSpec) -> dict[str, str]:
    """The fewest fields, by name, that make it a row of the table, with their values."""
    now = _choice(spec)
    found = [
        _changes(now, choice)
        for choice in _choices(spec, now)
        if _row(spec, choice) is not None and _is_sound(spec, choice)
    ]
    return min(found, key=_cost, default={})


def _choices(spec: KVCacheTierSpec, now: _Choice) -> Iterator[_Choice]:
    for connector, adapter, striping, pipeline, decode_context in product(
        Connector, Adapter, Striping, {now.pipeline, 1}, {now.decode_context, 1}
    ):
        yield _Choice(
            connector=connector,
            adapter=adapter,
            striping=striping,
            tensor=spec.pool.ranks // pipeline,
            pipeline=pipeline,
            decode_context=decode_context,
            prefill_context=1,
        )


def _is_sound(spec: KVCacheTierSpec, choice: _Choice) -> bool:
    """Whether sizes divide as they must (``kvtier.api.validate`` says it of the spec itself)."""
    layout, tensor = spec.model.layout, choice.tensor
    heads = [layout.gqa.kv_heads] if layout.gqa else []
    heads += [group.kv_heads for group in layout.groups or () if group.kv_heads]
    return (
        tensor * choice.pipeline == spec.pool.ranks
        and tensor % choice.decode_context == 0
        and all(count % tensor == 0 or tensor % count == 0 for count in heads)
    )


def _changes(now: _Choice, choice: _Choice) -> dict[str, str]:
    return {
        field.name: str(value)
        for field in fields(_Choice)
        if (value := getattr(choice, field.name)) != getattr(now, field.name)
    }


def _cost(changes: dict[str, str]) -> tuple[int, tuple[str, ...]]:
    costs = (
        _GENERIC_COST if value == Connector.GENERIC else _COSTS.get(name, 1)
        for name, value in changes.items()
    )
    return sum(costs), tuple(changes.values())


def _told(spec: KVCacheTierSpec, choice: _Choice) -> str:
    parts = [f"{choice.connector} {spec.pool.engine.version}", f"adapter {choice.adapter}"]
    parts += [f"striping {choice.striping}", f"layout {attention(spec)}"]
    sizes = {
        "pipeline": choice.pipeline,
        "decodeContext": choice.decode_context,
        "prefillContext": choice.prefill_context,
    }
    parts += [f"{name} {size}" for name, size in sizes.items() if size > 1]
    ranks = spec.pool.ranks
    return f"{parts[0]} with {', '.join(parts[1:])} on {ranks} rank{'s' if ranks > 1 else ''}"


def markdown() -> str:
    """The table of docs/engines.md."""
    lines = [
        "| connector | adapter | striping | layouts | parallelism beside tensor |"
        " LMCache servers of one engine | KV is stored | run in | note |",
        "|" + " --- |" * 9,
    ]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows()]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    generic = row.connector is Connector.GENERIC
    more = [
        name
        for name, allowed in (("pipeline", row.pipeline), ("decodeContext", row.decode_context))
        if allowed
    ]
    servers = {Servers.ENGINE: "1", Servers.RANK: "1 per rank", Servers.NONE: "none"}
    return (
        f"`{row.connector}`" + ("" if generic else f" {row.series}"),
        "" if generic else f"`{row.adapter}`",
        f"`{row.striping}`" + (" with `ranks: 1`" if row.one_rank else ""),
        f"`{row.attention}`",
        ", ".join(more) or "none",
        servers[row.servers],
        STORED_WORDS[row.stored],
        ", ".join(f"`{name}`" for name in row.tests),
        row.note,
    )

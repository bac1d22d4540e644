"""Metrics of single ranks: what their servers tell of themselves, and what probes found."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvtier.series import Family, Labels, Series

DENIED: Final = {
    "auth": "acl_access_denied_auth",
    "command": "acl_access_denied_cmd",
    "key": "acl_access_denied_key",
}
"""Reasons for which a server refuses, and what INFO calls them."""
SECTIONS: Final = ("server", "clients", "memory", "stats", "keyspace")
"""Those of INFO that the figures come from."""


FIELDS: Final = {
    "uptime_seconds": "uptime_in_seconds",
    "used_bytes": "used_memory",
    "max_bytes": "maxmemory",
    "clients": "connected_clients",
    "evicted_keys": "evicted_keys",
    "keyspace_hits": "keyspace_hits",
    "keyspace_misses": "keyspace_misses",
    "input_bytes": "total_net_input_bytes",
    "output_bytes": "total_net_output_bytes",
}
"""By metric, without ``kvtier_rank_``, the field of INFO; ``keys`` are added up."""


@dataclass(frozen=True, slots=True)
class RankFigures:
    """One rank's INFO: ``run`` is its server's id, another with each start, ``values`` are by the
    names of ``FIELDS`` and ``keys``, ``denied`` by reason. What a server counts it counts since its
    start."""

    run: str
    values: Mapping[str, float]
    denied: Mapping[str, float]


def figures(info: Mapping[str, str]) -> RankFigures:
    """Of the fields of INFO; what is missing or no number counts as 0."""
    values = {name: _number(info.get(field, "")) for name, field in FIELDS.items()}
    keys = sum(_keys(text) for name, text in info.items() if _is_database(name))
    return RankFigures(
        run=info.get("run_id", ""),
        values={**values, "keys": keys},
        denied={reason: _number(info.get(field, "")) for reason, field in DENIED.items()},
    )


class RankMetrics:
    """Part of ``Metrics``; a rank that does not answer has ``kvtier_rank_up`` 0, and no figures."""

    def __init__(self, tiers: Series) -> None:
        def gauge(name: str, text: str) -> Family:
            return tiers.gauge(f"kvtier_rank_{name}", text, "rank")

        def counter(name: str, text: str) -> Family:
            return tiers.counter(f"kvtier_rank_{name}", text, "rank")

        self._up = gauge("up", "1 for a rank whose server answers the operator, else 0.")
        self._restarts = counter("restarts", "Starts of a rank's server after the first seen.")
        self._figures = {
            name: make(name, text)
            for make, name, text in (
                (gauge, "uptime_seconds", "Seconds since a rank's server started."),
                (gauge, "used_bytes", "Bytes of memory that a rank's server has allocated."),
                (gauge, "max_bytes", "Bytes of memory from which on a rank evicts."),
                (gauge, "keys", "Keys that a rank holds."),
                (gauge, "clients", "Sessions that a rank has, the operator's own included."),
                (counter, "evicted_keys", "Keys that a rank evicted to make room."),
                (counter, "keyspace_hits", "Look-ups of keys that a rank had."),
                (counter, "keyspace_misses", "Look-ups of keys that a rank did not have."),
                (counter, "input_bytes", "Bytes that a rank received."),
                (counter, "output_bytes", "Bytes that a rank sent."),
            )
        }
        self._denied = tiers.counter(
            "kvtier_rank_denied",
            "What a rank refused by its ACL (auth, command, key).",
            *("rank", "reason"),
        )
        self._asked = tiers.gauge(
            "kvtier_rank_asked_timestamp_seconds",
            "When all ranks of a tier were last asked, in seconds since the epoch.",
        )
        self._rate = tiers.gauge(
            "kvtier_probe_rank_bytes_per_second",
            "Bandwidth from a rank into an engine's node, as last probed.",
            "rank",
        )
        self._round_trip = tiers.gauge(
            "kvtier_probe_rank_round_trip_seconds",
            "Round trip from an engine's node to a rank, as last probed.",
            "rank",
        )

    def show(
        self,
        namespace: str,
        tier: str,
        *,
        ranks: Mapping[int, RankFigures | None],
        restarted: Collection[int],
        at: float,
    ) -> None:
        """All ranks of a tier, None for one that did not answer; ``restarted`` are those whose run
        is another than when they answered last, and ``at`` is in seconds since the epoch."""
        key = (namespace, tier)
        known = {rank: self._restarts.get(key, str(rank)) or 0.0 for rank in ranks}
        self._restarts.replace(
            key, {(str(rank),): count + (rank in restarted) for rank, count in known.items()}
        )
        labelled: dict[Labels, RankFigures | None] = {(str(rank),): ranks[rank] for rank in ranks}
        answered = {rank: found for rank, found in labelled.items() if found is not None}
        self._up.replace(key, {rank: found is not None for rank, found in labelled.items()})
        for name, series in self._figures.items():
            series.replace(key, {rank: found.values[name] for rank, found in answered.items()})
        self._denied.replace(
            key,
            {
                (*rank, reason): count
                for rank, found in answered.items()
                for reason, count in found.denied.items()
            },
        )
        self._asked.set(key, at)

    def show_probed(
        self, namespace: str, tier: str, *, ranks: Sequence[tuple[int, float, float]]
    ) -> None:
        """Of each rank its number, bytes/s and round trip in seconds, as the last probe found."""
        key = (namespace, tier)
        self._rate.replace(key, {(str(rank),): rate for rank, rate, _ in ranks})
        self._round_trip.replace(key, {(str(rank),): seconds for rank, _, seconds in ranks})


def _is_database(name: str) -> bool:
    return name.startswith("db") and name[2:].isdigit()


def _keys(text: str) -> int:
    """Of ``keys=3,expires=0,avg_ttl=0``."""
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    return _number(fields.get("keys", ""))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0

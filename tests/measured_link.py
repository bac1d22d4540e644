"""The one Valkey of arXiv 2610.21500, as a probe would have measured it."""

from kvtier.breakeven.assessment import Evidence, LinkFigures

ONE_VALKEY = LinkFigures(
    domain="zone",
    bytes_per_second=1.71e9,
    round_trip_seconds=50e-6,
    evidence=Evidence.PROBED,
    at="2026-11-30T01:00:00Z",
    node="node-2",
    slowest_rank_bytes_per_second=1.71e9 / 8,
)

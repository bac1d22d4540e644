"""``spec.placement``: the topology, and the links that were declared."""

from enum import StrEnum

from pydantic import ConfigDict, Field, JsonValue

from kvtier.api.base import Change, Model, extra, rule
from kvtier.api.scalars import (
    DURATION_PATTERN,
    RATE_PATTERN,
    BitRate,
    DomainName,
    Duration,
    parse_duration,
    parse_quantity,
)

MIN_BITS_PER_SECOND = 1_000_000
MAX_BITS_PER_SECOND = 10**15

_LIVE = extra(Change.LIVE)
_NEXT_START = extra(Change.NEXT_START)


class Enforcement(StrEnum):
    REQUIRED = "Required"
    PREFERRED = "Preferred"


class Spread(StrEnum):
    NODE = "Node"
    NONE = "None"


class OnReject(StrEnum):
    """What becomes of a new tier that cannot pay whatever the link."""

    BLOCK = "Block"
    WARN = "Warn"


class Domain(Model):
    """One level of the topology."""

    name: DomainName = Field(
        description="Name of this topology level, used by links.",
        json_schema_extra=_LIVE,
    )
    key: str = Field(
        min_length=1,
        max_length=317,
        description="Node label whose value tells places of this level apart.",
        json_schema_extra=extra(
            Change.LIVE,
            rules=[
                rule(
                    "!format.qualifiedName().validate(self).hasValue()",
                    "must be a label name such as topology.kubernetes.io/zone",
                )
            ],
        ),
    )


class Link(Model):
    """The network between two nodes whose nearest common domain this is."""

    domain: str = Field(
        min_length=1,
        max_length=63,
        description="The nearest domain that the engine's node and the rank's node share; one of"
        " domains[].name.",
        json_schema_extra=_LIVE,
    )
    bits_per_second: BitRate = Field(
        description="Bandwidth of the whole path into the engine's node (all ranks together), in"
        " bits per second such as 25G.",
        json_schema_extra=extra(
            Change.LIVE,
            rules=[
                rule(
                    "type(self) == string ? (!self.matches(r'"
                    + RATE_PATTERN
                    + "') || (quantity(self).compareTo(quantity('1M')) >= 0 &&"
                    " quantity(self).compareTo(quantity('1P')) <= 0)) :"
                    f" (int(self) >= {MIN_BITS_PER_SECOND} && int(self) <= {MAX_BITS_PER_SECOND})",
                    "from 1M to 1P bits per second",
                )
            ],
        ),
    )
    round_trip: Duration = Field(
        description="Round-trip time of a small request, such as 50us.",
        json_schema_extra=extra(
            Change.LIVE,
            rules=[
                rule(
                    f"!self.matches(r'{DURATION_PATTERN}') || (duration(self) >= duration('1us') &&"
                    " duration(self) <= duration('10s'))",
                    "from 1us to 10s",
                )
            ],
        ),
    )

    @property
    def bytes_per_second(self) -> float:
        return float(parse_quantity(self.bits_per_second)) / 8

    @property
    def round_trip_seconds(self) -> float:
        return parse_duration(self.round_trip)


_DEFAULT_DOMAINS: list[JsonValue] = [
    {"name": "hostname", "key": "kubernetes.io/hostname"},
    {"name": "zone", "key": "topology.kubernetes.io/zone"},
]


def default_domains() -> list[Domain]:
    return [Domain.model_validate(domain) for domain in _DEFAULT_DOMAINS]


_PLACEMENT_RULES = [
    rule(
        "!has(self.links) || self.links.all(l, self.domains.exists(d, d.name == l.domain))",
        "links[].domain must be one of domains[].name",
    ),
    rule(
        "!has(self.within) || self.domains.exists(d, d.name == self.within)",
        "within must be one of domains[].name",
    ),
]


class Probe(Model):
    """How often links are measured."""

    interval: Duration = Field(
        default="6h",
        description="Time between two probes of a tier on which nothing moved, from 10m.",
        json_schema_extra=extra(
            Change.LIVE,
            rules=[
                rule(
                    f"!self.matches(r'{DURATION_PATTERN}') || (duration(self) >= duration('10m') &&"
                    " duration(self) <= duration('720h'))",
                    "from 10m to 720h",
                )
            ],
        ),
    )

    @property
    def interval_seconds(self) -> float:
        return parse_duration(self.interval)


class Placement(Model):
    model_config = ConfigDict(json_schema_extra=extra(rules=_PLACEMENT_RULES))

    domains: list[Domain] = Field(
        default_factory=default_domains,
        min_length=1,
        max_length=8,
        description="Topology levels, near to far. Default: hostname, zone.",
        json_schema_extra={
            "default": _DEFAULT_DOMAINS,
            **extra(
                Change.LIVE,
                rules=[
                    rule(
                        "self.all(a, self.exists_one(b, b.name == a.name))",
                        "two domains have one name",
                    )
                ],
            ),
        },
    )
    within: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="The level that all ranks share with the engines; one of domains[].name. The"
        " first Ready engines say which domain of it. Default: the farthest level that their nodes"
        " have a label of, hostname excepted.",
        json_schema_extra=_NEXT_START,
    )
    enforcement: Enforcement = Field(
        default=Enforcement.PREFERRED,
        description="Required lets a rank wait rather than run outside of that domain. Preferred"
        " lets it run wherever there is room.",
        json_schema_extra=_NEXT_START,
    )
    spread: Spread = Field(
        default=Spread.NODE,
        description="Node spreads ranks over nodes as evenly as there is room. None leaves it to"
        " the scheduler.",
        json_schema_extra=_NEXT_START,
    )
    links: list[Link] = Field(
        default_factory=list,
        max_length=8,
        description="What the network between two nodes gives, by the nearest domain they share."
        " Without it the verdict is Unknown until it is measured.",
        json_schema_extra=extra(Change.LIVE, list_keys=["domain"]),
    )
    probe: Probe = Field(
        default_factory=Probe,
        description="How often links are measured from the engines' nodes.",
    )
    on_reject: OnReject = Field(
        default=OnReject.WARN,
        description="What becomes of a new tier that cannot pay whatever the link: Warn creates it"
        " and says so, Block creates nothing. A tier that runs is never touched.",
        json_schema_extra=_LIVE,
    )

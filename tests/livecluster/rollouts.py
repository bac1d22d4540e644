"""One change of a tier's generation under load: what it began with, and what the docs say of it."""

from dataclasses import dataclass

from livecluster.figures import write_row
from livecluster.fixtures import NewTier
from livecluster.fleet import Fleet
from livecluster.fleet_told import STALLED_SECONDS, Counts
from livecluster.generations import Generations, rolled
from livecluster.ranks import Engine
from livecluster.tier import Tier, manifest
from livecluster.waiting import eventually

SLACK = 3.0
"""By how much a busy machine may be slower than what is promised."""
GONE_SECONDS = 2.0 * SLACK
"""From a change that fences at once until no rank gives a value of the fenced generation."""
MISS_SECONDS = 1.0 * SLACK
"""From the fence on a rank to the first miss of an engine that reads all the time."""
MOST_ERRORS = 0.001
"""Share of batches."""
LIVE_SECONDS = 5.0 * SLACK
OLD, NEW = {"model": {"revision": "1"}}, {"model": {"revision": "2"}}
SALTED = {"model": {"revision": "1", "salt": "weights of today"}}


@dataclass(frozen=True, slots=True)
class Rollout:
    """A Ready tier with its generation ``old``, of which ``token`` is the user."""

    tier: Tier
    generations: Generations
    old: str
    token: str

    def edit(self, spec: dict[str, object], *, drain: str) -> str:
        """Give the tier another identity, at once; the id of its generation."""
        changed = rolled(spec, drain=drain)
        new = self.generations.id_of(changed)
        document = manifest(name=self.tier.name, namespace=self.tier.namespace, spec=changed)
        # Not kubectl, which takes seconds to start on a busy machine.
        patch = {"spec": document["spec"]}
        self.tier.cluster.api.patch("kvcachetiers", self.tier.namespace, self.tier.name, patch)
        return new

    def gone(self, *, seconds: float) -> None:
        """Until no rank gives the old user a key."""
        eventually(
            lambda: set(self.generations.reaches(self.old, self.token).values()) == {False},
            seconds=seconds,
            what="the old generation's access is gone on all ranks",
            detail=self.generations.rows,
        )


def begin(new_tier: NewTier, *, name: str = "chat", drain: str = "10s") -> Rollout:
    tier = new_tier(name)
    spec = rolled(OLD, drain=drain)
    tier.apply(spec)
    tier.wait_ready()
    generations = Generations(tier)
    old = generations.id_of(spec)
    assert generations.state(old) == "Live"
    return Rollout(tier=tier, generations=generations, old=old, token=tier.engine().token)


def reaches(engine: Engine, rank: int, *, operator: str, generation: str, token: str) -> bool:
    """Whether one rank would let the user with this token read a key, by the rank's own word."""
    with engine.connect(rank, username="operator", password=operator) as session:
        key = f"{engine.prefix(rank)}@x"
        assert generation in key
        known = token.encode() in session.execute_command("ACL", "USERS")
        return known and session.execute_command("ACL", "DRYRUN", token, "get", key) in (
            b"OK",
            "OK",
        )


def read(engines: Fleet, *, values: int, seconds: float) -> None:
    """Until the fleet has read and checked so many values in all."""
    eventually(
        lambda: engines.counts().reads >= values,
        seconds=seconds,
        what=f"{values} values are read",
        detail=engines.detail,
    )


def right(counts: Counts) -> None:
    """Not one byte was stale, foreign or corrupt, and there were values to judge."""
    assert counts.stale == counts.foreign == counts.corrupt == 0, counts
    assert counts.hits == counts.reads > 0, counts


def undisturbed(counts: Counts) -> None:
    """Ranks answered all the time, and at once. On a busy machine the first connection of a pod may
    be too late; its next one is a quarter of a second later."""
    assert counts.errors <= MOST_ERRORS * counts.batches, counts
    assert counts.longest < SLACK * STALLED_SECONDS, counts


def last_access(engines: Fleet, *, generation: str) -> float:
    """When the ranks last gave or took a value of the generation, seconds since the epoch."""
    return max(
        told.moments[moment][1]
        for told in engines.timeline(generation=generation)
        for moment in ("hit", "wrong", "write")
        if moment in told.moments
    )


def row(what: str, counts: Counts, *, came: str) -> None:
    """A line of docs/faults.md. ``counts`` are of every engine that ran."""
    right(counts)
    numbers = (f"{counts.reads:,}", str(counts.wrong), f"{counts.denied:,}")
    longest = f"{counts.longest * 1000:.0f} ms"
    write_row("faults.md", place="rollouts", row=(what, *numbers, longest, came))

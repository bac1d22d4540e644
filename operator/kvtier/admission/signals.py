"""Pure: what the storm machine is told, as plain numbers.

Times are seconds of one monotonic clock, rates are prompt tokens/s.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankSignal:
    """One rank as last asked.

    ``at`` is when it last answered, None if it never did; ``asked`` when it was last asked.
    ``answers``: whether the last question was answered. ``run_id`` names the run of its server,
    ``keys`` and ``used_bytes`` are what it held, of the last answer. ``uptime`` is for how many
    seconds that run has lasted, None if it was not told: it shows a limiter that starts within a
    storm which rank is young.
    """

    rank: int
    asked: float
    answers: bool
    at: float | None = None
    run_id: str = ""
    keys: int = 0
    used_bytes: int = 0
    uptime: float | None = None


@dataclass(frozen=True, slots=True)
class TokenSignal:
    """What all engines that tell have counted since the last time the machine was told.

    ``prompt`` are tokens of prompts, ``hit`` those of them that the tier served, ``computed`` those
    that were prefilled, over ``seconds`` of wall time and from ``engines`` engines. ``waiting`` are
    the requests that wait in engines now, None where nothing tells. ``source`` names the metric
    that the hits are from. ``busy`` are the seconds that requests spent in prefill, summed over
    them, None where nothing tells: requests that share steps make it too long, never too short.
    """

    prompt: float
    hit: float
    computed: float
    seconds: float
    engines: int
    waiting: float | None = None
    source: str = ""
    busy: float | None = None


@dataclass(frozen=True, slots=True)
class Signals:
    """All that is known at one moment.

    ``ranks``: an entry per rank of the tier that was asked yet. ``engines`` are the Ready engines,
    None while that is not known; ``engines_at`` is when it was last known. ``tokens`` is None where
    no new figures have come since the last look; ``counts_tokens`` is False where engines tell no
    hits at all. ``offered`` is the rate of prompt tokens that came, before anything was refused,
    None for whoever does not see requests. ``planned``: the operator has announced a storm.
    """

    ranks: tuple[RankSignal, ...] = ()
    engines: int | None = None
    engines_at: float | None = None
    tokens: TokenSignal | None = None
    counts_tokens: bool = False
    offered: float | None = None
    planned: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a tier's engines can do, from its spec and its status. Tokens/s and tokens.

    ``engine_rate`` is R of one engine at the mean prompt, before ``utilization``; ``mean_prompt``
    tokens, ``target_ttft`` seconds (None: not declared), ``floor`` the share of the peak below
    which no limit falls. ``expected_hit`` is the declared share of hits, None if there is none.
    ``ranks`` is W, ``held`` the seconds for which a hit holds a GPU (pool.hitEngineTime).
    """

    ranks: int
    engine_rate: float
    utilization: float
    mean_prompt: float
    target_ttft: float | None = None
    floor: float = 0.1
    expected_hit: float | None = None
    held: float = 0.0

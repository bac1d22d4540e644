"""``kvtier simulate storm``: what the loss of a tier's cache does to its engines, from its file.

Exits 0; 2 for bad input.
"""

import argparse
import random
from typing import Final

from kvtier.admission.capacity import DEFAULT_PROMPT, expected_hit, sizes_of
from kvtier.admission.fleet import Kind
from kvtier.admission.simulate import Plan, simulate
from kvtier.api.scalars import parse_duration
from kvtier.api.types import KVCacheTier
from kvtier.breakeven.load import prefill_points, requests, requests_per_second
from kvtier.breakeven.rates import prefill_rate
from kvtier.breakeven.tier import curve
from kvtier.cli import figures, files, output, simulate_plot, simulate_report
from kvtier.cli.errors import BadInput
from kvtier.cli.plan import plot_file
from kvtier.cli.simulate_report import Report

WHAT: Final = ("storm",)
DEFAULT_HIT: Final = 0.9
WARM_BUSY: Final = 0.75
"""Share of time in which GPUs are busy while all is well, where no request rate is given."""
REWARM_SECONDS: Final = 75.0
"""Seconds for which all engines would prefill to store every prefix anew, where no number of
prefixes is given."""
MOST_REQUESTS: Final = 2_000_000
MOST_PREFIXES: Final = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=WHAT, help="storm: the tier is wiped while engines work")
    files.add_file_argument(parser)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument(
        "--plot",
        type=plot_file,
        metavar="FILE.svg",
        help="also draw it: hit rate, limit, queue and time to first token",
    )
    parser.add_argument(
        "--admission",
        choices=("on", "off"),
        default="on",
        help="off lets everything in, as mode Observe does (on)",
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--engines",
        type=figures.count(1, 1024),
        metavar="N",
        help="Ready engines (pool.maxEngines)",
    )
    load.add_argument(
        "--requests-per-second",
        type=figures.figure(1e-3, 1e5),
        metavar="X",
        help="of all engines, at random moments (workload.requestsPerSecond of each, else what "
        f"keeps GPUs busy {WARM_BUSY:.0%}% of the time while all is well)",
    )
    load.add_argument(
        "--hit-rate",
        type=figures.figure(0, 1),
        metavar="SHARE",
        help="share of each prompt that is a prefix others have too (workload.hitRate, else "
        f"{DEFAULT_HIT:g})",
    )
    load.add_argument(
        "--prefixes",
        type=figures.count(1, MOST_PREFIXES),
        metavar="N",
        help="how many prefixes there are, each as likely (as many as all engines prefill in "
        f"{REWARM_SECONDS:g} s)",
    )
    load.add_argument(
        "--true-rate-factor",
        type=figures.figure(0.1, 10),
        default=1.0,
        metavar="X",
        help="how fast engines really are, over what pool.prefillRate says (1)",
    )
    time = parser.add_argument_group("time")
    time.add_argument(
        "--wipe-at",
        type=figures.duration(0, 86400),
        default=60.0,
        metavar="TIME",
        help="when a rank restarts empty, and nothing hits (60s)",
    )
    time.add_argument(
        "--duration",
        type=figures.duration(10, 86400),
        default=300.0,
        metavar="TIME",
        help="for how long requests come (300s)",
    )
    time.add_argument(
        "--step",
        type=figures.duration(1, 3600),
        default=10.0,
        metavar="TIME",
        help="time of one row (10s)",
    )
    time.add_argument(
        "--seed",
        type=figures.count(0, 2**32 - 1),
        default=1,
        metavar="N",
        help="runs with the same one are the same (1)",
    )
    parser.epilog = "exit codes: 0, 2 bad input\ndocs/admission.md explains the figures"


def run(arguments: argparse.Namespace) -> int:
    tier = files.load(arguments.file)
    plan = plan_of(tier, arguments)
    # Nothing secret hangs on this chance: the same seed is to give the same curves.
    done = simulate(plan, chance=random.Random(arguments.seed))
    report = Report(
        name=tier.metadata.name, plan=plan, run=done, seed=arguments.seed, step=arguments.step
    )
    if arguments.plot is not None:
        try:
            arguments.plot.write_text(simulate_plot.plot(report), encoding="utf-8")
        except OSError as error:
            raise BadInput(
                f"--plot {arguments.plot}: {error.strerror}; name a file that can be written"
            ) from None
    if arguments.output == "json":
        print(output.document(simulate_report.document(report), "json"), end="")
    else:
        print(simulate_report.table(report), end="")
    return 0


def plan_of(tier: KVCacheTier, arguments: argparse.Namespace) -> Plan:
    """What to simulate. Raises BadInput for more than engines could do without a storm."""
    spec = tier.spec
    if arguments.wipe_at >= arguments.duration:
        raise BadInput(
            f"--wipe-at: {arguments.wipe_at:g}s is not before the end; give less than --duration,"
            f" which is {arguments.duration:g}s"
        )
    hit = arguments.hit_rate
    if hit is None:
        hit = expected_hit(spec)
    hit = DEFAULT_HIT if hit is None else hit
    engines = arguments.engines or spec.pool.max_engines
    kinds = _kinds(tier, hit=hit, factor=arguments.true_rate_factor)
    warm = sum(_warm_seconds(kind) for kind in kinds) / len(kinds)
    rate = arguments.requests_per_second
    if rate is None:
        declared = requests_per_second(spec)
        rate = engines * (WARM_BUSY / warm if declared is None else declared)
    if rate * warm >= engines:
        raise BadInput(
            f"--requests-per-second: {rate:.3g} keep {engines} engines busy for {rate * warm:.3g}"
            " s in each second although all is well: no storm is needed to fill the queue; give"
            f" less than {engines / warm:.3g}, or more --engines"
        )
    if rate * arguments.duration > MOST_REQUESTS:
        raise BadInput(
            f"--duration: {rate * arguments.duration:,.0f} requests are more than"
            f" {MOST_REQUESTS:,}; give a shorter one, or fewer --requests-per-second"
        )
    return Plan(
        kinds=kinds,
        sizes=sizes_of(spec),
        engines=engines,
        requests_per_second=rate,
        prefixes=arguments.prefixes or _prefixes(kinds, engines=engines),
        wipe_at=arguments.wipe_at,
        duration=arguments.duration,
        admission=arguments.admission == "on",
    )


def _kinds(tier: KVCacheTier, *, hit: float, factor: float) -> tuple[Kind, ...]:
    """Equally likely prompts, as declared, else one of 8,192 tokens."""
    spec = tier.spec
    lengths = [request.prompt for request in requests(spec)] or [int(DEFAULT_PROMPT)]
    prefixes = {length: round(hit * length) for length in lengths}
    rates, held = prefill_points(spec), _held(tier)
    hits = sorted({prefix for prefix in prefixes.values() if prefix})
    fetches = {row.tokens: row.fetch_seconds for row in curve(spec, hits)}
    made: dict[int, Kind] = {}
    for length, prefix in prefixes.items():
        fetch = fetches.get(prefix)
        made[length] = Kind(
            tokens=length,
            prefix=prefix,
            prefill=length / prefill_rate(rates, length) / factor,
            held=held,
            fetch=0.0 if fetch is None else fetch - held,
        )
    return tuple(made[length] for length in lengths)


def _held(tier: KVCacheTier) -> float:
    held = tier.spec.pool.hit_engine_time
    return 0.0 if held is None else parse_duration(held)


def _warm_seconds(kind: Kind) -> float:
    """For which a request holds a GPU while all prefixes are stored."""
    missed = (kind.tokens - kind.prefix) / kind.tokens * kind.prefill
    return missed + (kind.held if kind.prefix else 0.0)


def _prefixes(kinds: tuple[Kind, ...], *, engines: int) -> int:
    """As many as all engines prefill in ``REWARM_SECONDS``."""
    each = sum(kind.prefill * kind.prefix / kind.tokens for kind in kinds) / len(kinds)
    most = REWARM_SECONDS * engines / each if each else 1.0
    return max(1, min(MOST_PREFIXES, round(most)))

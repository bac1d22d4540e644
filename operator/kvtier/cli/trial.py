"""``kvtier try``: a tier without a cluster. Its ranks run here, are measured, and are gone again.

Exits 0 when every rank answered and every byte was right, 1 when not, 130 when it was stopped.
"""

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Final

from kvtier.api.types import KVCacheTier
from kvtier.breakeven.tier import assess, chunk_bytes_per_rank
from kvtier.cli import model_config, output, terminal, trial_report
from kvtier.cli.errors import BadInput
from kvtier.cli.files import add_file_argument
from kvtier.cli.trial_report import Kept, Trial
from kvtier.generation.acl import OPERATOR_USER, PROBE_USER, probe_prefix
from kvtier.generation.record import Record, new_record
from kvtier.loadtest.connection import load
from kvtier.placement.chain import examine
from kvtier.probe.config import ProbeConfig
from kvtier.probe.result import ProbeResult
from kvtier.probe.worker import run_probe
from kvtier.redact import new_token, redact
from kvtier.store.address import RankAddress
from kvtier.store.failure import Failed
from kvtier.store.resp import RespConnection
from kvtier.trial.files import write_engine, write_ranks
from kvtier.trial.keeper import HOST
from kvtier.trial.machine import available_memory
from kvtier.trial.program import NoServer, Program, find_program
from kvtier.trial.reference import fetch
from kvtier.trial.scale import Scaled, TooSmall, scaled
from kvtier.trial.session import Session, Stopped, TrialFailed, session

FAILED: Final = 1
STOPPED: Final = 130
PROBE_SECONDS: Final = 0.5
"""A hundred samples of each rank: `kvtier try` is to answer within five seconds."""
PROBE_BYTES: Final = 4 << 30
INFO_SECONDS: Final = 5.0
STEPS: Final = 3
"""Of the bar: ranks start, are measured, and give back a prompt."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file_argument(parser)
    model_config.add_argument(parser, required=False)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument(
        "--valkey-server",
        metavar="PATH",
        help="the server to run (the one installed, else that of the extra kvtier[try])",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave the ranks running, and say how to use and end them",
    )
    parser.epilog = (
        "exit codes: 0 every rank answered and every byte was right, 1 not so, 2 bad input,\n"
        "130 stopped. Without --keep nothing is left behind, however it ends."
    )


def run(arguments: argparse.Namespace) -> int:
    tier = model_config.load_tier(arguments)
    try:
        program = find_program(arguments.valkey_server, series=tier.spec.store.version.value)
        here = scaled(tier, available=available_memory())
    except (NoServer, TooSmall) as error:
        raise BadInput(str(error)) from None
    with _stop_signals() as stop:
        try:
            with session(stop) as ranks:
                return _try(tier, here, program, ranks=ranks, stop=stop, arguments=arguments)
        except Stopped:
            print("kvtier: stopped; nothing is left behind", file=sys.stderr)
            return STOPPED
        except TrialFailed as error:
            print(f"kvtier: {error}", file=sys.stderr)
            return FAILED


def _try(
    tier: KVCacheTier,
    here: Scaled,
    program: Program,
    *,
    ranks: Session,
    stop: threading.Event,
    arguments: argparse.Namespace,
) -> int:
    probe_token = new_token()
    record = new_record(
        here.tier.spec,
        operator_token=new_token(),
        engine_token=new_token(),
        probe_token=probe_token,
    )
    write_ranks(ranks.directory, here.tier, record)
    with terminal.bar("ranks start", total=STEPS) as bar:
        ports = ranks.start(program, ranks=tier.spec.pool.ranks)
        engine = write_engine(ranks.directory, here.tier, record, ports=ports)
        bar.at(1, "each rank is measured")
        probe = _probe(here.tier, ports, token=probe_token, stop=stop)
        bar.at(2, "a prompt is stored and fetched")
        fetched = None if stop.is_set() else fetch(load(engine), stop=stop)
        used = _used(ports, record)
    assessment = assess(tier.spec)
    trial = Trial(
        tier=tier,
        assessment=assessment,
        findings=examine(tier.spec, assessment=assessment),
        server=str(program),
        changes=here.changes,
        ports=ports,
        probe=probe,
        fetched=fetched,
        used=used,
    )
    if stop.is_set():
        raise Stopped
    kept = Kept(engine=engine, pid=ranks.pid) if arguments.keep else None
    if arguments.output == "json":
        shown = output.document(trial_report.document(trial, kept=kept), "json")
    else:
        shown = trial_report.text(trial, kept=kept)
    print(redact(shown), end="", flush=True)
    if kept is not None:
        ranks.keep()
    return 0 if trial.works else FAILED


def _probe(
    tier: KVCacheTier, ports: Sequence[int], *, token: str, stop: threading.Event
) -> ProbeResult:
    return run_probe(
        ProbeConfig(
            ranks=tuple(
                RankAddress(rank=rank, host=HOST, port=port, prefix=probe_prefix(rank))
                for rank, port in enumerate(ports)
            ),
            value_bytes=chunk_bytes_per_rank(tier.spec),
            max_bytes=max(PROBE_BYTES, 8 * len(ports) * chunk_bytes_per_rank(tier.spec)),
            seconds=PROBE_SECONDS,
            username=PROBE_USER,
            password=token,
        ),
        stop=stop,
    )


def _used(ports: Sequence[int], record: Record) -> list[tuple[int, int] | None]:
    """Used and most bytes of each rank; None of one that does not answer."""
    found: list[tuple[int, int] | None] = []
    for port in ports:
        link = RespConnection(seconds=INFO_SECONDS)
        try:
            link.open((HOST, port), username=OPERATOR_USER, password=record.operator_token)
            facts = link.info("memory")
            found.append((int(facts["used_memory"]), int(facts["maxmemory"])))
        except (Failed, KeyError, ValueError):
            found.append(None)
        finally:
            link.close()
    return found


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C, SIGTERM and a terminal that closes set, as often as they come.

    They are blocked, and a thread takes them: children begin with them blocked as well, so that a
    Ctrl-C, which a whole terminal hears, interrupts none that is still about to ignore it.
    """
    stop, ended = threading.Event(), threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def listen() -> None:
        while not ended.is_set():
            signal.sigwait(numbers)
            if not ended.is_set():
                stop.set()

    # Started later, this helper of multiprocessing's would unblock them.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    listener = threading.Thread(target=listen, name="signals", daemon=True)
    listener.start()
    try:
        yield stop
    finally:
        ended.set()
        assert listener.ident is not None
        signal.pthread_kill(listener.ident, signal.SIGHUP)
        listener.join()
        # Once stopped the process is about to end: another signal is to change nothing.
        if not stop.is_set():
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""A probe: a process for each rank, all of them read at once, and what they tell put together."""

import multiprocessing
import statistics
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import Final

from kvtier.loadtest.measures import percentile
from kvtier.probe.config import ProbeConfig
from kvtier.probe.cpu import Throttling
from kvtier.probe.rank import (
    CLEAN_SECONDS,
    Measured,
    Ready,
    Said,
    Trouble,
    probe_rank,
    run_word,
)
from kvtier.probe.rates import NothingInCommon, common_window, given, rate
from kvtier.probe.result import ProbeResult, RankMeasure, troubles
from kvtier.probe.step import Step

START_SECONDS: Final = 30.0
"""For the ranks' processes to come up, on a busy machine too."""
GRACE_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.1
LEAD_SECONDS: Final = 0.02
"""From the word to begin until the begin, so that all ranks have heard it by then."""


def deadline_seconds(config: ProbeConfig) -> float:
    """What no probe takes longer than."""
    return START_SECONDS + config.setup_seconds + config.seconds + GRACE_SECONDS + CLEAN_SECONDS


def run_probe(config: ProbeConfig, *, stop: threading.Event | None = None) -> ProbeResult:
    """Measure the ranks from here. Takes at most ``deadline_seconds``; ``stop`` ends it early, with
    a trouble for each rank that has no figures by then.

    It opens at most ``config.connections`` connections to a rank at a time, and moves at most
    ``config.max_bytes`` of values. A rank that is down, slow or wrong is a trouble in the result.
    """
    probe = _Probe(config, stop=stop or threading.Event())
    try:
        return probe.run()
    finally:
        probe.end()


class _Probe:
    def __init__(self, config: ProbeConfig, *, stop: threading.Event) -> None:
        self._config = config
        self._stop = stop
        self._said: dict[int, list[Said]] = {each.rank: [] for each in config.ranks}
        self._pipes: dict[int, Pipe] = {}
        context = multiprocessing.get_context("spawn")
        self._processes = []
        run, step = run_word(), Step(len(config.ranks))
        for place, each in enumerate(config.ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=probe_rank, args=(theirs, config, place, step, run), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes[each.rank] = ours
            self._processes.append(process)

    def run(self) -> ProbeResult:
        self._hear(1, seconds=START_SECONDS + self._config.setup_seconds)
        throttling, share = Throttling.now(), 0.0
        if all(isinstance(each[-1], Ready) for each in self._said.values() if each) and all(
            self._said.values()
        ):
            begin = time.monotonic() + LEAD_SECONDS
            for pipe in self._pipes.values():
                with suppress(OSError):
                    pipe.send(begin)
            # The first that has read all its bytes ends it: what the others get alone is another
            # figure.
            self._hear(2, seconds=LEAD_SECONDS + self._config.seconds + GRACE_SECONDS)
            share = Throttling.now().share_since(throttling)
        return self._result(throttled=share)

    def end(self) -> None:
        """Let the processes clean up, and end those that do not come to an end."""
        for pipe in self._pipes.values():
            with suppress(OSError):
                pipe.send(None)
            pipe.close()
        last = time.monotonic() + CLEAN_SECONDS + GRACE_SECONDS / 2
        for process in self._processes:
            process.join(max(0.0, last - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()

    def _hear(self, count: int, *, seconds: float) -> None:
        """Listen until each rank has said ``count`` things, or has had its time, or ``stop``."""
        last = time.monotonic() + seconds
        told = False
        while not self._stop.is_set() and time.monotonic() < last:
            lacking = {
                pipe: rank for rank, pipe in self._pipes.items() if len(self._said[rank]) < count
            }
            if not lacking:
                return
            for heard in wait(list(lacking), POLL_SECONDS):
                assert isinstance(heard, Pipe)
                self._said[lacking[heard]].append(_receive(heard))
                if count > 1 and not told:
                    told = True
                    for pipe in self._pipes.values():
                        with suppress(OSError):
                            pipe.send(None)

    def _result(self, *, throttled: float) -> ProbeResult:
        measured: dict[int, Measured] = {}
        trouble: dict[int, str] = {}
        for rank, said in self._said.items():
            last = said[-1] if said else None
            if isinstance(last, Measured):
                measured[rank] = last
            elif isinstance(last, Trouble):
                trouble[rank] = last.text
            elif self._stop.is_set():
                trouble[rank] = "the probe was stopped"
            elif last is None:
                seconds = START_SECONDS + self._config.setup_seconds
                trouble[rank] = f"not ready within {seconds:g} s"
        waits = len(measured) + len(trouble) < len(self._said)
        if waits and not trouble:
            trouble = {
                rank: "its reading did not end" for rank in self._said if rank not in measured
            }
        ranks: tuple[RankMeasure, ...] = ()
        spent = 0.0
        if not trouble:
            try:
                begin, end = common_window([each.samples for each in measured.values()])
                spent = end - begin
                ranks = self._measures(measured, begin=begin, end=end)
                trouble = _silent(ranks, seconds=spent)
            except NothingInCommon as error:
                trouble = dict.fromkeys(measured, str(error))
        return ProbeResult(
            at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            node=self._config.node,
            seconds=spent,
            throttled=throttled,
            bytes_moved=sum(each.bytes_moved for each in measured.values()),
            ranks=() if trouble else ranks,
            troubles=troubles(trouble),
            tls=self._config.ca is not None,
        )

    def _measures(
        self, measured: Mapping[int, Measured], *, begin: float, end: float
    ) -> tuple[RankMeasure, ...]:
        found = []
        last = min(measured.values(), key=lambda each: given(each.samples, at=end))
        # Whoever was ahead of it waited for it now and then, and came in bursts.
        pace = rate(last.samples, begin=begin, end=end)
        for rank, each in measured.items():
            ready = self._said[rank][0]
            assert isinstance(ready, Ready)
            found.append(
                RankMeasure(
                    rank=rank,
                    bytes_per_second=max(pace, rate(each.samples, begin=begin, end=end)),
                    round_trip=statistics.median(ready.round_trips),
                    round_trip_p99=percentile(ready.round_trips, 0.99) or 0.0,
                    bytes_timed=each.samples[-1][1],
                    cpu_seconds=each.cpu_seconds,
                    busy=each.busy,
                )
            )
        return tuple(found)


def _silent(ranks: tuple[RankMeasure, ...], *, seconds: float) -> dict[int, str]:
    """Of ranks that gave nothing while all were read those that the others waited for."""
    silent = [each for each in ranks if not each.bytes_per_second]
    least = min((each.bytes_timed for each in silent), default=0)
    text = f"not one byte came in {seconds:.2g} s while it was read"
    return {each.rank: text for each in silent if each.bytes_timed == least}


def _receive(pipe: Pipe) -> Said:
    try:
        said: Said = pipe.recv()
    except (EOFError, OSError):
        return Trouble("its process ended without a word: it was out of memory, or killed")
    return said

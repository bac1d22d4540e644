"""What the engines' client needs of a CPU for a byte, measured by LMCache's own bench."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import lmcache_bench as bench
import one_rank

from kvtier.probe.result import CLIENT_EFFICIENCY
from kvtier.probe.worker import run_probe
from livecluster import figures

TURNS = 3
ROUND_BYTES = 80 << 20
ROUNDS = 10
AGREES = 0.25
"""CPU seconds a byte change by so much with what else uses the caches and the memory."""
DEFAULT_WORKERS = 8
"""The stated efficiency is theirs. Of fewer it may say too little (one over TLS: 0.9), and must not
say too much."""
ZERO = """
import time, torch
parts = [torch.empty({size}, dtype=torch.uint8).fill_(1) for _ in range({count})]
begun = time.process_time()
for _ in range({times}):
    for part in parts:
        part.zero_()
print({size} * {count} * {times} / (time.process_time() - begun))
"""
HEAD = (
    *("chunk", "workers", "probe, GB in a CPU second", "LMCache, GB in a CPU second"),
    *("efficiency", "`link`, GB/s", "`client`, GB/s", "LMCache, GB/s", "CPUs that LMCache used"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """``layers`` of a KV head each are a chunk: 80 as in a Llama 70B on eight ranks, or a tenth."""

    layers: int
    workers: int
    tls: bool = False

    def __str__(self) -> str:
        return f"{self.layers // 8} MiB" + (", TLS" if self.tls else "")


CASES = (
    *(Case(80, DEFAULT_WORKERS), Case(80, 1), Case(8, DEFAULT_WORKERS)),
    *(Case(80, DEFAULT_WORKERS, tls=True), Case(80, 1, tls=True)),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """The probe and LMCache's bench, one after the other. Bytes for a second of CPU; bytes/s."""

    probe_cpu: float
    client_cpu: float
    link: float
    stated: float
    client: float

    @property
    def efficiency(self) -> float:
        return self.client_cpu / self.probe_cpu


def test_the_stated_efficiency_is_that_of_lmcache_s_own_client(
    program: list[str], tmp_path: Path
) -> None:
    load = os.getloadavg()[0]
    rows: list[Sequence[str]] = [HEAD]
    found: dict[Case, list[Turn]] = {}
    for case in CASES:
        home = tmp_path / f"{case.layers}-{case.workers}-{case.tls}"
        home.mkdir()
        tier = one_rank.tier(layers=case.layers, tls=case.tls)
        with one_rank.running(tier, home=home) as rank:
            zeroed = zero_rate(program, rank.chunk_bytes)
            turns = [turn(program, rank, workers=case.workers, zeroed=zeroed) for _ in range(TURNS)]
        found[case] = turns
        rows.append(row(case, turns))
        print(rows[-1], flush=True)
    text = (
        f"One rank over loopback, which shares the CPUs: median of {TURNS} (least to most), taken "
        f"in turns.\n\n{figures.table(rows)}\n{figures.machine()}; load {load:.1f} before."
    )
    figures.write("benchmarks.md", place="client", text=text)
    for case, turns in found.items():
        measured, stated = median(each.efficiency for each in turns), CLIENT_EFFICIENCY[case.tls]
        assert measured > (1 - AGREES) * stated, case
        if case.workers == DEFAULT_WORKERS:
            assert measured < (1 + AGREES) * stated, case


def row(case: Case, turns: Sequence[Turn]) -> Sequence[str]:
    return (
        str(case),
        str(case.workers),
        spread([each.probe_cpu / 1e9 for each in turns]),
        spread([each.client_cpu / 1e9 for each in turns]),
        spread([each.efficiency for each in turns]),
        spread([each.link / 1e9 for each in turns]),
        spread([each.stated / 1e9 for each in turns]),
        spread([each.client / 1e9 for each in turns]),
        spread([each.client / each.client_cpu for each in turns]),
    )


def turn(program: Sequence[str], rank: one_rank.Rank, *, workers: int, zeroed: float) -> Turn:
    found = run_probe(rank.probe)
    assert not found.troubles, found.troubles
    assert found.link is not None
    assert found.client is not None
    (mine,) = found.ranks
    work = bench.Work(
        chunks=ROUND_BYTES // rank.chunk_bytes, chunk_bytes=rank.chunk_bytes, rounds=ROUNDS
    )
    adapter = rank.adapter | {"num_workers": workers}
    (theirs,) = bench.load(program, [adapter], work, environment=rank.environment)
    return Turn(
        probe_cpu=mine.bytes_timed / mine.cpu_seconds,
        client_cpu=1 / (theirs.cpu_per_byte - 1 / zeroed),
        link=found.link,
        stated=found.client,
        client=theirs.bytes_per_second,
    )


def zero_rate(program: Sequence[str], size: int) -> float:
    """Bytes that LMCache's bench sets to zero in a second of CPU, which a client does not do."""
    done = subprocess.run(
        [program[0], "-c", ZERO.format(size=size, count=ROUND_BYTES // size, times=ROUNDS)],
        env={"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"

"""How many decisions does a core make, and how long does one take at half of that?"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from limiter_process import TIER, limiter, until
from livecluster import figures
from webhook_process import free_port

ROUNDS = 15
SECONDS = 1
CONNECTIONS = 16
HALF_LOAD_CONNECTIONS = 64
LEAST_OF_FLOOR = 0.7
BARE = Path(__file__).with_name("bare_server.py")

# What Envoy sends with each question.
SCRIPT = """
wrk.method = "POST"
wrk.headers["x-kvtier-bytes"] = "8000"
wrk.headers["Authorization"] = "Bearer sk-0123456789abcdef0123456789abcdef"
wrk.headers["Content-Length"] = "0"
wrk.headers["x-envoy-internal"] = "true"
wrk.headers["x-envoy-expected-rq-timeout-ms"] = "200"
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A server that is asked: ``port``, and the process that serves."""

    name: str
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """CPU time of all its threads, by the scheduler, in ns."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


@dataclass(frozen=True, slots=True)
class Round:
    """What one run of the load generator found. ``per_core``: answers per CPU second of the server;
    ``rate``: answers/s; ``p50`` and ``p99``: seconds; ``refused``: the share of answers not 2xx."""

    per_core: float
    rate: float
    p50: float
    p99: float
    refused: float


@contextmanager
def bare(name: str, *options: str) -> Iterator[Case]:
    port = free_port()
    process = subprocess.Popen([sys.executable, str(BARE), str(port), *options])
    try:
        case = Case(name, port, process.pid)
        until(lambda: subprocess.run(["curl", "-s", f"127.0.0.1:{port}"]).returncode == 0)
        yield case
    finally:
        process.terminate()
        process.wait(timeout=10)


def run(case: Case, script: Path, *, connections: int = CONNECTIONS) -> Round:
    before = case.cpu_seconds()
    done = subprocess.run(
        [
            *("wrk", "-t1", f"-c{connections}", f"-d{SECONDS}s", "--latency"),
            *("-s", str(script), f"http://127.0.0.1:{case.port}/v1/admit/{TIER}/v1/completions"),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    spent = case.cpu_seconds() - before
    count = int(found(r"(\d+) requests in", done))
    assert "Socket errors" not in done, done
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", done)
    return Round(
        per_core=count / spent,
        rate=float(found(r"Requests/sec:\s+([\d.]+)", done)),
        p50=seconds(found(r"\n\s+50%\s+(\S+)", done)),
        p99=seconds(found(r"\n\s+99%\s+(\S+)", done)),
        refused=int(refused.group(1)) / count if refused else 0.0,
    )


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match, text
    return match.group(1)


def seconds(text: str) -> float:
    for unit, size in (("us", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * size
    raise AssertionError(text)


@pytest.mark.timeout(400)
def test_a_decision_costs_little_beside_the_answer_itself(tmp_path: Path) -> None:
    assert shutil.which("wrk"), "no load generator: `deploy/local/cluster build` installs it"
    script, tiers = tmp_path / "load.lua", tmp_path / "tiers.json"
    script.write_text(SCRIPT)
    # A storm in which all pass, and one in which next to nothing does.
    tiers.write_text(json.dumps({TIER: {"limit": 1e12}}))
    tight = tmp_path / "tight.json"
    tight.write_text(json.dumps({TIER: {"limit": 1e4}}))
    with (
        bare("bare handler, 200") as says_yes,
        bare("bare handler, 429", "refuse") as says_no,
        limiter(free_port(), tiers=tiers) as wide,
        limiter(free_port(), tiers=tight) as narrow,
    ):
        admits = Case("limiter, admits", wide.port, wide.process.pid)
        sheds = Case("limiter, sheds", narrow.port, narrow.process.pid)
        # The floor of a case is the handler that gives the same answer.
        cases = {says_yes: says_yes, admits: says_yes, says_no: says_no, sheds: says_no}
        rounds: dict[str, list[Round]] = {case.name: [] for case in cases}
        for _ in range(1 + ROUNDS):
            for case in cases:
                rounds[case.name].append(run(case, script))
        # The first of each only warms up.
        rounds = {name: each[1:] for name, each in rounds.items()}
        half = {case.name: at_half_load(case, script, rounds[case.name]) for case in cases}
    rows = [("", "answers/s and core", "of the floor", "at half load: answers/s", "p50", "p99")]
    ratios = {}
    for case, floor in cases.items():
        found_here = [each.per_core for each in rounds[case.name]]
        # Each with the floor of its own turn: what else the machine does comes and goes.
        pairs = zip(rounds[case.name], rounds[floor.name], strict=True)
        ratios[case.name] = median(each.per_core / base.per_core for each, base in pairs)
        slow = half[case.name]
        rows.append(
            (
                case.name,
                f"{median(found_here):,.0f} ({min(found_here):,.0f}-{max(found_here):,.0f})",
                f"{ratios[case.name]:.2f}",
                f"{slow.rate:,.0f}",
                f"{1000 * slow.p50:.1f} ms",
                f"{1000 * slow.p99:.1f} ms",
            )
        )
    title = (
        f"wrk asks one process over loopback, {CONNECTIONS} connections, as Envoy would: median of "
        f"{ROUNDS} rounds of {SECONDS} s (least to most), taken in turns; CPU is the server's. The "
        "floor is the handler that gives the same answer."
    )
    text = f"{title}\n\n{figures.table(rows)}\n{figures.machine()}."
    figures.write("limiter.md", place="decisions", text=text)
    assert min(each.refused for each in rounds[sheds.name]) > 0.9
    assert max(each.refused for each in rounds[admits.name]) == 0
    assert min(ratios.values()) >= LEAST_OF_FLOOR


def at_half_load(case: Case, script: Path, rounds: list[Round]) -> Round:
    """Half of what it answered when it was asked as quickly as it could."""
    rate = median(each.rate for each in rounds) / 2
    pause = 1000 * HALF_LOAD_CONNECTIONS / rate
    paced = script.with_name("paced.lua")
    paced.write_text(
        script.read_text() + f"function delay() return math.random(0, {round(2 * pause)}) end\n"
    )
    return run(case, paced, connections=HALF_LOAD_CONNECTIONS)

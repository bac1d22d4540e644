"""What judges rollouts on a cluster: stamps of weights, and logs of pods that come and go."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import pytest

import livecluster
from livecluster.fleet_logs import FleetLogs
from livecluster.fleet_told import LATENCY_SECONDS, Counts, Told

Stamp = Callable[..., str]


@pytest.fixture
def stamp(monkeypatch: pytest.MonkeyPatch) -> Stamp:
    """Of an engine that is started so."""
    # As in the pod, where its parts lie beside the program.
    monkeypatch.syspath_prepend(str(Path(livecluster.__path__[0])))
    engine = import_module("fleet_engine")

    def of(command: str, *, weights: str = "") -> str:
        monkeypatch.setenv("FLEET_WEIGHTS", weights)
        found: str = engine.Weights.effective(command.split()).stamp
        return found

    return of


BASE = "serve a/model --revision 1 --kv-cache-dtype bfloat16 --port 8000"


@pytest.mark.parametrize(
    "other",
    [
        "serve a/other --revision 1 --kv-cache-dtype bfloat16 --port 8000",
        "serve a/model --revision 2 --kv-cache-dtype bfloat16 --port 8000",
        "serve a/model --kv-cache-dtype bfloat16 --port 8000",
        "serve a/model --revision 1 --kv-cache-dtype fp8 --port 8000",
    ],
)
def test_whatever_changes_the_bytes_changes_the_stamp(stamp: Stamp, other: str) -> None:
    assert stamp(BASE) != stamp(other)


def test_weights_that_changed_under_one_name_change_the_stamp(stamp: Stamp) -> None:
    assert stamp(BASE) != stamp(BASE, weights="others")


def test_other_arguments_and_another_spelling_leave_the_stamp(stamp: Stamp) -> None:
    assert stamp(BASE) == stamp("serve a/model --kv-cache-dtype=bfloat16 --revision=1 --seed 3")


def told(*, stretch: int = 0, reads: int = 0, began: float = 1.0, pod: str = "fleet-a-b") -> Told:
    return Told(
        pod=pod,
        stretch=stretch,
        weights="w",
        runs="",
        generation="g",
        began=began,
        counts=Counts(reads=reads),
    )


def line(one: Told, *, stream: str = "stdout") -> str:
    return f"2026-01-01T00:00:00.0Z {stream} F {json.dumps(asdict(one))}\n"


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[FleetLogs]:
    found = FleetLogs(state=tmp_path, namespace="ns", deployment="fleet")
    yield found
    found.close()


def log_of(state: Path, pod: str = "fleet-a-b", *, restarts: int = 0) -> Path:
    path = state / "node-1" / "log" / "pods" / f"ns_{pod}_0-1" / "vllm" / f"{restarts}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_the_last_line_of_each_stretch_counts(logs: FleetLogs, tmp_path: Path) -> None:
    lines = [told(reads=1), told(reads=5), told(stretch=1, reads=2, began=2.0)]
    log_of(tmp_path).write_text("".join(map(line, lines)))
    assert [(each.stretch, each.counts.reads) for each in logs.look()] == [(0, 5), (1, 2)]


def test_what_a_pod_told_before_its_log_was_deleted_is_read(
    logs: FleetLogs, tmp_path: Path
) -> None:
    path = log_of(tmp_path)
    with path.open("w") as log:
        log.write(line(told(reads=1)))
        log.flush()
        assert [each.counts.reads for each in logs.look()] == [1]
        path.unlink()
        log.write(line(told(reads=7)))
    assert [each.counts.reads for each in logs.look()] == [7]


def test_a_line_that_is_still_being_written_waits_for_its_end(
    logs: FleetLogs, tmp_path: Path
) -> None:
    whole = line(told(reads=3))
    path = log_of(tmp_path)
    path.write_text(whole[:50])
    assert logs.look() == []
    with path.open("a") as log:
        log.write(whole[50:])
    assert [each.counts.reads for each in logs.look()] == [3]


def test_a_rotated_log_and_a_restarted_container_lose_nothing(
    logs: FleetLogs, tmp_path: Path
) -> None:
    path = log_of(tmp_path)
    path.write_text(line(told(reads=1)))
    logs.look()
    path.rename(path.with_suffix(".old"))
    path.write_text(line(told(reads=4)))
    log_of(tmp_path, restarts=1).write_text(line(told(reads=6, began=2.0)))
    assert [each.counts.reads for each in logs.look()] == [4, 6]


def test_pods_of_another_deployment_are_not_of_the_fleet(logs: FleetLogs, tmp_path: Path) -> None:
    log_of(tmp_path, "fleet-x-a-b").write_text(line(told(pod="fleet-x-a-b")))
    assert logs.look() == []


def test_standard_error_is_kept_as_a_complaint(logs: FleetLogs, tmp_path: Path) -> None:
    log_of(tmp_path).write_text("2026-01-01T00:00:00.0Z stderr F Traceback\n")
    assert logs.look() == []
    assert logs.complaints == ["ns_fleet-a-b_0-1/0: Traceback"]


def test_counts_add_up_but_for_the_worst_wait() -> None:
    first, second = Counts(reads=1, stale=1), Counts(reads=2, foreign=1, corrupt=1)
    first.timed(0.15)
    first.timed(3.0)
    second.timed(0.0005)
    both = first + second
    assert (both.reads, both.wrong, both.batches) == (3, 3, 3)
    assert (both.slow, both.stalls, both.longest) == (2, 1, 3.0)
    assert both.latency[0] == 1
    assert both.latency[LATENCY_SECONDS.index(0.2)] == 1
    assert sum(both.latency) == 3

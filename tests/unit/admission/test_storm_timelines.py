"""The storm machine, timeline by timeline: the files in ``timelines`` say what is told and what
must follow."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from timeline import Timeline

FILES = sorted(Path(__file__).with_name("timelines").glob("*.yaml"))
TIMELINES = [
    timeline for file in FILES for timeline in yaml.safe_load(file.read_text(encoding="utf-8"))
]
WARM_SECONDS = 30


def test_there_are_at_least_sixty_and_each_has_its_own_name() -> None:
    names = [timeline["name"] for timeline in TIMELINES]
    assert len(set(names)) == len(names) >= 60


@pytest.mark.parametrize("timeline", TIMELINES, ids=lambda timeline: timeline["name"])
def test_the_machine_follows_the_timeline(timeline: dict[str, Any]) -> None:
    played = Timeline(timeline.get("sizes"))
    if timeline.get("start") != "cold":
        played.play(WARM_SECONDS)
    for number, step in enumerate(timeline["steps"]):
        played.seen.clear()
        played.change(step.get("signals", {}))
        played.play(step["for"])
        _check(played, step["expect"], where=f"step {number + 1}")


def _check(played: Timeline, expected: dict[str, Any], *, where: str) -> None:
    storm, limited = played.storm, played.limit
    told = f"{where}: {storm.state.value} ({storm.cause}), {limited}"
    for name, value in expected.items():
        if name == "state":
            assert storm.state.value == value, told
        elif name == "cause":
            assert (storm.cause and storm.cause.value) == value, told
        elif name == "limit":
            _near(limited.tokens_per_second, value, told)
        elif name == "hit_low":
            _near(storm.hit_low, value, told)
        elif name == "only":
            assert set(played.seen) == set(value), f"{told} {played.seen}"
        elif name == "why":
            assert value in limited.why, told
        else:
            raise AssertionError(f"{where}: {name} is not known")


def _near(found: float | None, expected: float | str | None, told: str) -> None:
    if expected is None:
        assert found is None, told
        return
    assert found is not None, told
    if isinstance(expected, str):
        sign, figure = expected[0], float(expected[1:])
        assert found > figure if sign == ">" else found < figure, told
    else:
        assert found == pytest.approx(expected, rel=0.02, abs=0.01), told

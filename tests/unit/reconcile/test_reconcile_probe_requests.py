"""The reconciler on fakes: probes that somebody asks for."""

import pytest
from probe_harness import ask, job, probed
from tier_harness import KEY, Operator


async def test_a_probe_that_is_asked_for_is_made_once(serving: Operator) -> None:
    first = await probed(serving)
    ask(serving, serving.clock.now().isoformat())
    await serving.settle()
    second = await probed(serving)
    assert second["at"] > first["at"]
    assert (await probed(serving))["at"] == second["at"]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_probe_that_is_asked_for_while_one_runs_is_another_one(
    restarted: bool, serving: Operator
) -> None:
    """Whether the process that runs it began it, or found it."""
    assert job(serving) is not None
    await serving.clock.advance(2)
    ask(serving, serving.clock.now().isoformat())
    if restarted:
        serving.restart()
        serving.queue.add(KEY, dirty=frozenset({"KVCacheTier"}))
    await serving.settle()
    await probed(serving, looks=16)
    assert serving.recorder.reasons().count("Probed") == 2


@pytest.mark.parametrize("when", ["", "now", "2020-01-01T00:00:00Z", "99999-13-45"])
async def test_what_is_no_new_request_is_none(when: str, serving: Operator) -> None:
    first = await probed(serving)
    ask(serving, when)
    await serving.settle()
    assert (await probed(serving))["at"] == first["at"]

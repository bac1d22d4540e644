"""Every scenario, struck at every call in every way: what `make test` has no time for."""

import random

import pytest

from kills.driver import Campaign, errors, stops
from kills.generations import GENERATIONS
from kills.scenarios import SCENARIOS
from livecluster.figures import write_row

PAIRS = 300

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in GENERATIONS])
async def test_whatever_hits_whichever_call_the_end_is_the_same(name: str) -> None:
    campaign = await Campaign.of(name)
    stopped, wrong = await campaign.strike_each(
        (blow,) for call in campaign.calls for blow in stops(call)
    )
    failed, also_wrong = await campaign.strike_each(
        (blow,) for call in campaign.calls for blow in errors(call)
    )
    wrong += also_wrong
    assert not wrong, "\n".join(wrong)
    _record(name.replace("_", " "), calls=len(campaign.calls), stopped=stopped, failed=failed)


@pytest.mark.parametrize("name", GENERATIONS)
async def test_whatever_hits_a_rollout_the_end_is_the_same(name: str) -> None:
    """They are ten times as long: of errors only one, at every third call."""
    campaign = await Campaign.of(name)
    stopped, wrong = await campaign.strike_each(
        (blow,) for call in campaign.calls for blow in stops(call)
    )
    failed, also_wrong = await campaign.strike_each(
        (errors(call)[turn % len(errors(call))],) for turn, call in enumerate(campaign.calls[::3])
    )
    wrong += also_wrong
    assert not wrong, "\n".join(wrong)
    _record(name.replace("_", " "), calls=len(campaign.calls), stopped=stopped, failed=failed)


async def test_two_stops_of_a_creation_end_the_same() -> None:
    campaign = await Campaign.of("create")
    pairs = campaign.pairs(PAIRS, random.Random(5))
    stopped, wrong = await campaign.strike_each(pairs)
    assert not wrong, "\n".join(wrong)
    _record("create, stopped twice", calls=len(campaign.calls), stopped=stopped, failed=0)


def _record(name: str, *, calls: int, stopped: int, failed: int) -> None:
    row = [name, f"{calls}", f"{stopped}", f"{failed}", "0"]
    write_row("faults.md", place="kills-in-memory", row=row)

"""Wherever the operator is stopped or refused, what comes out is what would have come out.

This is what fits into seconds; `make campaign` strikes every scenario at every call in every way.
"""

import random

import pytest

from kills.driver import Campaign, errors, stops
from kills.scenarios import SCENARIOS

MAIN = (
    *("create", "change_several", "change_paused", "roll_one"),
    *("delete", "delete_and_create_again"),
)
OTHERS = tuple(name for name in SCENARIOS if name not in MAIN)
PAIRS = 60

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", MAIN)
async def test_stopped_on_either_side_of_any_call_it_ends_as_if_it_had_not_been(name: str) -> None:
    campaign = await Campaign.of(name)
    runs = [(blow,) for call in campaign.calls for blow in stops(call)]
    count, wrong = await campaign.strike_each(runs)
    assert not wrong, "\n".join(wrong)
    assert count == 2 * len(campaign.calls) > 0


@pytest.mark.parametrize("name", OTHERS)
async def test_stopped_at_every_third_call_of_what_is_rarer_it_ends_the_same(name: str) -> None:
    campaign = await Campaign.of(name)
    runs = [(stops(call)[call.index % 2],) for call in campaign.calls[::3]]
    _, wrong = await campaign.strike_each(runs)
    assert not wrong, "\n".join(wrong)
    assert runs


@pytest.mark.parametrize("name", MAIN)
async def test_an_error_at_any_call_changes_nothing_in_the_end(name: str) -> None:
    campaign = await Campaign.of(name)
    runs = []
    for call in campaign.calls:
        fitting = errors(call)
        runs.append((fitting[call.index % len(fitting)],))
    _, wrong = await campaign.strike_each(runs)
    assert not wrong, "\n".join(wrong)
    assert runs


async def test_stopped_twice_while_it_creates_it_ends_the_same() -> None:
    campaign = await Campaign.of("create")
    count, wrong = await campaign.strike_each(campaign.pairs(PAIRS, random.Random(4)))
    assert not wrong, "\n".join(wrong)
    assert count == PAIRS

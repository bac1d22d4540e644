"""Wherever the operator is stopped or refused, what comes out is what would have come out.

This is what fits into seconds; `make campaign` strikes every scenario at every call in every way.
"""

import random

import pytest

from kills.driver import Campaign, errors, stops
from kills.generations import GENERATIONS
from kills.scenarios import SCENARIOS

MAIN = (
    *("create", "change_several", "change_paused", "roll_one"),
    *("delete", "delete_and_create_again", "engines_choose"),
)
OTHERS = tuple(name for name in SCENARIOS if name not in MAIN and name not in GENERATIONS)
PAIRS = 30

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", MAIN)
async def test_stopped_on_either_side_of_every_second_call_it_ends_the_same(name: str) -> None:
    campaign = await Campaign.of(name)
    # After one call is before the next one: every state is seen by one kind of next process.
    runs = [(blow,) for call in campaign.calls[::2] for blow in stops(call)]
    count, wrong = await campaign.strike_each(runs)
    assert not wrong, "\n".join(wrong)
    assert count >= len(campaign.calls) > 0


@pytest.mark.parametrize("name", OTHERS)
async def test_stopped_at_every_sixth_call_of_what_is_rarer_it_ends_the_same(name: str) -> None:
    campaign = await Campaign.of(name)
    runs = [(stops(call)[turn % 2],) for turn, call in enumerate(campaign.calls[::6])]
    _, wrong = await campaign.strike_each(runs)
    assert not wrong, "\n".join(wrong)
    assert runs


@pytest.mark.parametrize("name", MAIN)
async def test_an_error_at_every_third_call_changes_nothing_in_the_end(name: str) -> None:
    campaign = await Campaign.of(name)
    runs = []
    for turn, call in enumerate(campaign.calls[::3]):
        fitting = errors(call)
        runs.append((fitting[turn % len(fitting)],))
    _, wrong = await campaign.strike_each(runs)
    assert not wrong, "\n".join(wrong)
    assert runs


async def test_stopped_twice_while_it_creates_it_ends_the_same() -> None:
    campaign = await Campaign.of("create")
    count, wrong = await campaign.strike_each(campaign.pairs(PAIRS, random.Random(4)))
    assert not wrong, "\n".join(wrong)
    assert count == PAIRS


@pytest.mark.parametrize("name", GENERATIONS)
async def test_stopped_at_a_few_calls_of_a_rollout_it_ends_the_same(name: str) -> None:
    campaign = await Campaign.of(name)
    # Other calls in each scenario, so that together they see most kinds.
    first = list(GENERATIONS).index(name) * 7
    runs = [(stops(call)[turn % 2],) for turn, call in enumerate(campaign.calls[first::80])]
    _, wrong = await campaign.strike_each(runs)
    assert not wrong, "\n".join(wrong)
    assert runs

"""The verdict agrees with what a client takes over the same narrowed link."""

import pytest

from livecluster.cluster import LiveCluster
from livecluster.fixtures import NewTier
from livecluster.probing import ask, engine_on, probed
from livecluster.shaping import Links
from livecluster.truth import (
    ENGINE_NODE,
    ON_OTHER_NODES,
    PAYLOAD,
    SLOW,
    break_even,
    judge,
)


@pytest.mark.timeout(420, func_only=True)
def test_a_link_of_twice_the_break_even_pays_and_one_of_half_of_it_never_does(
    new_tier: NewTier, live: LiveCluster
) -> None:
    tier = new_tier("chat")
    tier.apply({**ON_OTHER_NODES, **SLOW})
    tier.wait_ready()
    needed = break_even(tier)
    links = Links(live)
    with links.into(ENGINE_NODE, rate=2 * needed / PAYLOAD):
        engine_on(tier, ENGINE_NODE)
        wide = judge(tier, probed(tier), run="wide")
    with links.into(ENGINE_NODE, rate=needed / 2 / PAYLOAD):
        narrow = judge(tier, probed(tier, after=ask(tier)), run="narrow")
    print(wide, narrow, sep="\n")
    assert wide.wins
    assert wide.says in ("Pays", "PaysWhenLong"), wide
    assert not narrow.wins
    assert narrow.says == "NeverPays", narrow
    for each, share in ((wide, 2.0), (narrow, 0.5)):
        assert each.measured["bytesPerSecond"] == pytest.approx(share * needed, rel=0.3)
        assert each.predicted == pytest.approx(each.fetch, rel=0.5)

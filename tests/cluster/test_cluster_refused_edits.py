"""Edits that are not carried out: each says why, and no rank feels it."""

import pytest

from livecluster.cluster import Failed
from livecluster.fixtures import NewTier
from livecluster.installation import RESYNC
from livecluster.tier import Tier
from livecluster.waiting import never

CHUNKS = 8
STATUS = "kvcachetiers/status"


def served(new_tier: NewTier) -> Tier:
    tier = new_tier("chat")
    tier.apply()
    tier.wait_ready()
    tier.engine().store(chunks=CHUNKS)
    return tier


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"pool": {"ranks": 4}}, "spec.pool.ranks"),
        ({"pool": {"striping": "Hash"}}, "spec.pool.striping"),
    ],
    ids=["ranks", "striping"],
)
def test_what_makes_another_tier_is_refused_at_once_with_what_to_do(
    patch: dict[str, dict[str, object]], field: str, new_tier: NewTier
) -> None:
    tier = new_tier("chat")
    tier.apply({"paused": True})
    with pytest.raises(Failed) as refusal:
        tier.patch(patch)
    for words in (field, "immutable", "another name"):
        assert words in str(refusal.value)


def test_a_spec_that_only_kvtier_can_see_is_wrong_is_refused_by_condition_and_makes_nothing(
    new_tier: NewTier,
) -> None:
    tier = new_tier("chat")
    # 64Mi cannot hold 16 chunks of 16 MiB and buffers beside them: no schema can work that out.
    tier.apply({"model": {"layout": {"gqa": {"layers": 512}}}})
    shown = tier.wait("SpecValid", "False", reason="InvalidSpec")
    assert "spec.store.memoryPerRank" in shown["message"]
    assert "set it to at least" in shown["message"]
    tier.wait("Ready", "False")
    assert tier.children() == {}
    assert "spec.store.memoryPerRank" in tier.warning("InvalidSpec")
    tier.apply()
    tier.wait_ready()


def test_an_edit_that_only_kvtier_can_see_is_wrong_leaves_running_ranks_as_they_are(
    new_tier: NewTier,
) -> None:
    tier = served(new_tier)
    before, engine = tier.containers(), tier.engine()
    tier.patch({"pool": {"maxEngines": 1024}})
    shown = tier.wait("SpecValid", "False", reason="InvalidSpec")
    assert "spec.pool.maxEngines" in shown["message"]
    never(lambda: tier.containers() != before, seconds=2 * RESYNC, what="a rank restarted")
    assert engine.hits(chunks=CHUNKS) == {0: CHUNKS, 1: CHUNKS}
    tier.patch({"pool": {"maxEngines": 2}})
    tier.wait_ready()
    assert tier.containers() == before

"""What someone deletes or edits comes back as it was, and no rank restarts for it."""

import base64
import json
import time
from collections.abc import Iterator

import pytest

from livecluster.fixtures import NewTier
from livecluster.installation import RESYNC
from livecluster.tier import Tier
from livecluster.waiting import eventually

AT_ONCE = 3.0
AT_RESYNC = 3 * RESYNC
CHUNKS = 8
NAME = "chat"
AT_ONCE_CHILDREN = {
    "statefulset": ("statefulsets", f"{NAME}-r0"),
    "service": ("services", f"{NAME}-r1"),
    "configmap": ("configmaps", f"{NAME}-valkey"),
}
EDITS = {
    "statefulset": {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 99}}}},
    "service": {"spec": {"selector": {"kvtier.dev/rank": "7"}}},
    "configmap": {"data": {"valkey.conf": "appendonly yes\n"}},
}
FOREIGN_VALUE = base64.b64encode(b"someone-else-was-here").decode()


@pytest.fixture(scope="module")
def served(module_tiers: NewTier) -> Tier:
    """A tier that the tests of this module share."""
    tier = module_tiers(NAME)
    tier.apply()
    return tier


@pytest.fixture
def tier(served: Tier) -> Iterator[Tier]:
    """The tier, ready and used; afterwards the same processes still have the same chunks."""
    served.wait_ready()
    served.engine().store(chunks=CHUNKS)
    containers, tokens = served.containers(), served.tokens()
    yield served
    served.wait_ready()
    assert served.containers() == containers
    assert served.tokens() == tokens
    assert served.engine().hits(chunks=CHUNKS) == {0: CHUNKS, 1: CHUNKS}


def secret_name(tier: Tier, which: str) -> str:
    engine: str = tier.body()["status"]["engineSecret"]
    return engine if which == "engine" else f"{NAME}-{which}"


@pytest.mark.parametrize("kind", AT_ONCE_CHILDREN)
def test_a_deleted_child_is_made_again_at_once(kind: str, tier: Tier) -> None:
    plural, name = AT_ONCE_CHILDREN[kind]
    before = tier.children()[plural, name]
    # Its pod stays: otherwise it would be the deletion, not the repair, that restarts a rank.
    tier.kubectl("delete", kind, name, "--cascade=orphan")
    after = eventually(lambda: tier.child(plural, name), seconds=AT_ONCE, what=f"{name} is back")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["metadata"]["ownerReferences"] == before["metadata"]["ownerReferences"]


@pytest.mark.parametrize("kind", AT_ONCE_CHILDREN)
def test_an_edited_child_is_put_right_at_once(kind: str, tier: Tier) -> None:
    plural, name = AT_ONCE_CHILDREN[kind]
    before = tier.children()[plural, name]
    patch = json.dumps(EDITS[kind])
    tier.kubectl("patch", kind, name, "--type=merge", "-p", patch)
    part = "data" if kind == "configmap" else "spec"
    eventually(
        lambda: tier.children()[plural, name][part] == before[part],
        seconds=AT_ONCE,
        what=f"{name} is as before",
        detail=lambda: tier.children()[plural, name][part],
    )


def test_a_child_that_lost_the_labels_it_is_found_by_is_put_right(tier: Tier) -> None:
    name = f"{NAME}-valkey"
    before = tier.children()["configmaps", name]["metadata"]
    tier.kubectl(
        *("label", "configmap", name, "--overwrite"),
        *("kvtier.dev/tier-name-", "app.kubernetes.io/managed-by=me"),
    )

    def labels() -> dict[str, str]:
        found = tier.child("configmaps", name)
        assert found is not None
        shown: dict[str, str] = found["metadata"]["labels"]
        return shown

    eventually(
        lambda: labels().items() >= before["labels"].items(),
        seconds=AT_ONCE,
        what="the labels are back",
        detail=labels,
    )


@pytest.mark.parametrize("which", ["acl", "operator", "engine"])
def test_a_deleted_secret_is_made_again_with_the_same_tokens(which: str, tier: Tier) -> None:
    name = secret_name(tier, which)
    before = tier.secret(name)
    tier.kubectl("delete", "secret", name)
    eventually(lambda: tier.child("secrets", name), seconds=AT_RESYNC, what=f"{name} is back")
    assert tier.secret(name) == before


@pytest.mark.parametrize("which", ["acl", "operator", "engine"])
def test_an_edited_secret_is_put_right(which: str, tier: Tier) -> None:
    name = secret_name(tier, which)
    before = tier.secret(name)
    key = "record.json" if which == "acl" else "token"
    patch = json.dumps({"data": {key: FOREIGN_VALUE}})
    tier.kubectl("patch", "secret", name, "--type=merge", "-p", patch)
    eventually(
        lambda: tier.secret(name) == before,
        seconds=AT_RESYNC,
        what=f"{name} is as before",
        detail=lambda: sorted(tier.secret(name)),
    )


def test_a_killed_rank_comes_back_empty_with_the_same_users(new_tier: NewTier) -> None:
    tier = new_tier(NAME)
    tier.apply()
    tier.wait_ready()
    engine = tier.engine()
    engine.store(chunks=CHUNKS)
    before = tier.containers()
    tier.kubectl("delete", "pod", f"{NAME}-r1-0", "--wait=false")
    eventually(
        lambda: tier.containers().get(1, before[1]) != before[1],
        seconds=30,
        what="rank 1 runs in another container",
    )
    tier.wait_ready()
    assert tier.containers()[0] == before[0]
    again = tier.engine()
    assert again.token == engine.token
    assert again.hits(chunks=CHUNKS) == {0: CHUNKS, 1: 0}


def test_a_foreign_service_with_a_ranks_name_is_left_alone_and_reported(
    new_tier: NewTier,
) -> None:
    tier = new_tier(NAME)
    taken = f"{NAME}-r1"
    tier.kubectl("create", "service", "clusterip", taken, "--tcp=80")
    before = tier.child("services", taken)
    tier.apply()
    shown = tier.wait("StoreReady", "False", reason="NameConflict")
    assert f"Service {taken}" in shown["message"]
    tier.wait("Ready", "False")
    assert taken in tier.warning("NameConflict")
    # Everything else is there, and looking again changes nothing.
    eventually(lambda: 0 in tier.containers(), seconds=30, what="rank 0 runs")
    time.sleep(2 * RESYNC)
    assert tier.child("services", taken) == before
    tier.kubectl("delete", "service", taken)
    tier.wait_ready()
    assert tier.engine().hits(chunks=1) == {0: 0, 1: 0}

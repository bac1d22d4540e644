"""The end of a tier."""

import pytest

from livecluster.audit import described
from livecluster.fixtures import NewTier
from livecluster.installation import RESYNC, Installation
from livecluster.tier import CHILD_KINDS
from livecluster.waiting import eventually, never

GONE_SECONDS = 30
MADE_BY_KUBERNETES = {"kube-root-ca.crt"}


@pytest.mark.parametrize("cascade", ["foreground", "background"])
def test_deleting_a_tier_removes_all_that_it_had_and_nothing_comes_back(
    cascade: str, new_tier: NewTier, kvtier: Installation
) -> None:
    tier = new_tier("chat")
    tier.apply()
    tier.wait_ready()
    begin = kvtier.cluster.audit.mark()
    timeout = f"--timeout={GONE_SECONDS}s"
    tier.kubectl("delete", "kvt", "chat", f"--cascade={cascade}", "--wait", timeout)

    def left() -> list[str]:
        plurals = (*CHILD_KINDS, "pods", "controllerrevisions", "endpointslices", "kvcachetiers")
        return [
            f"{plural}/{obj['metadata']['name']}"
            for plural in plurals
            for obj in kvtier.cluster.api.list(plural, tier.namespace)
            if obj["metadata"]["name"] not in MADE_BY_KUBERNETES
        ]

    if cascade == "foreground":
        # That is what it promises: the tier goes last. Endpoints only follow their Service.
        assert [name for name in left() if not name.startswith("endpointslices/")] == []
    eventually(lambda: not left(), seconds=GONE_SECONDS, what="nothing is left", detail=left)
    never(left, seconds=2 * RESYNC, what="something came back")
    made = [
        request
        for request in kvtier.requests(begin)
        if request.namespace == tier.namespace and request.code == 201
    ]
    assert made == [], described(made, keep=lambda _: True)


def test_a_tier_that_is_made_again_starts_with_other_tokens(new_tier: NewTier) -> None:
    tier = new_tier("chat")
    tier.apply()
    tier.wait_ready()
    first = tier.engine()
    tier.kubectl("delete", "kvt", "chat", "--cascade=foreground", f"--timeout={GONE_SECONDS}s")
    tier.apply()
    tier.wait_ready()
    second = tier.engine()
    assert second.prefix(0) == first.prefix(0)
    assert second.token != first.token
    assert second.hits(chunks=1) == {0: 0, 1: 0}

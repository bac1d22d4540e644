"""The reconciler on fakes: engines know whom to trust before ranks serve it. Real handshakes."""

from typing import Any

import pytest
from tier_harness import KEY, Operator, again, spec
from tls_tier import (
    NAMES,
    TLS,
    certificates,
    deliver,
    engine_files,
    mounted_certificate,
    put,
)

from certificates import Ca, Pair
from kvtier.api import reasons
from kvtier.cluster.protocol import POD, SECRET, TIER, Forbidden


def pause(operator: Operator, paused: bool) -> None:
    operator.cluster.edit(TIER, *KEY, {"spec": {"paused": paused}})


def waits(operator: Operator) -> bool:
    """Whether the condition says that a certificate waits until engines have its CA."""
    return "give engines the CA" in operator.condition("StoreReady")["message"]


def start_anew(operator: Operator) -> None:
    """What restarted containers do: they serve what is mounted now."""
    deliver(operator)
    for name in operator.pods():
        operator.server(name).restart()


async def test_a_certificate_of_another_ca_waits_while_paused_and_engines_keep_the_ranks(
    served: Operator, ca: Ca, other_ca: Ca
) -> None:
    pods, old = served.uids(), certificates(served)
    pause(served, True)
    await served.settle()
    put(served, other_ca.issue(*NAMES), other_ca.pem)
    deliver(served)
    await served.resync()
    await again(served, 5)
    assert engine_files(served)["ca.crt"] == ca.pem
    assert certificates(served) == old
    assert waits(served), served.condition("StoreReady")
    pause(served, False)
    await served.settle()
    await again(served, 5)
    assert not set(old) & set(certificates(served))
    await again(served, 5)
    assert engine_files(served)["ca.crt"] == other_ca.pem
    assert served.condition("Ready")["status"] == "True"
    assert served.uids() == pods


async def test_a_second_change_of_ca_while_paused_loses_no_rank(
    served: Operator, other_ca: Ca
) -> None:
    pause(served, True)
    for authority in (other_ca, Ca("third")):
        put(served, authority.issue(*NAMES), authority.pem)
        deliver(served)
        await served.resync()
    pause(served, False)
    await served.settle()
    await again(served, 5)
    assert served.condition("Ready")["status"] == "True", served.condition("Ready")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_no_rank_loads_a_certificate_of_another_ca_before_engines_are_given_it(
    when: str, served: Operator, ca: Ca, other_ca: Ca
) -> None:
    old = certificates(served)
    put(served, other_ca.issue(*NAMES), other_ca.pem)
    deliver(served)
    refused = []

    def refuse(request: Any, moment: str) -> Exception | None:
        if (request.verb, request.kind, moment) != ("apply", SECRET, when) or len(refused) > 8:
            return None
        refused.append(request)
        return Forbidden(status=403, reason="Forbidden", message="no")

    served.cluster.faults.append(refuse)
    await served.clock.advance(360)
    for _ in range(3):
        with pytest.raises(Forbidden):
            await served.reconciler.reconcile(KEY, frozenset())
        assert certificates(served) == old
        assert served.condition("StoreReady")["reason"] == reasons.APPLY_FAILED
        if when == "after":
            break
        assert engine_files(served)["ca.crt"] == ca.pem
    refused.extend([None] * 9)
    await again(served, 5)
    assert not set(old) & set(certificates(served))
    assert served.condition("Ready")["status"] == "True"


async def test_a_certificate_of_the_same_ca_is_loaded_though_a_write_fails(
    served: Operator, ca: Ca
) -> None:
    old = certificates(served)
    put(served, ca.issue(*NAMES), ca.pem)
    deliver(served)
    served.cluster.edit(SECRET, KEY[0], served.status()["engineSecret"], {"data": {"env": ""}})
    error = Forbidden(status=403, reason="Forbidden", message="no")
    served.cluster.faults.append(
        lambda request, when: error if request.verb == "apply" and when == "before" else None
    )
    await served.clock.advance(360)
    with pytest.raises(Forbidden):
        await served.reconciler.reconcile(KEY, frozenset())
    assert not set(old) & set(certificates(served))


async def test_a_rank_that_serves_a_ca_nobody_was_given_is_told_with_what_mends_it(
    served: Operator, other_ca: Ca
) -> None:
    put(served, other_ca.issue(*NAMES), other_ca.pem)
    start_anew(served)
    third = Ca("third")
    put(served, third.issue(*NAMES), third.pem)
    await served.resync()
    await again(served, 5)
    told = served.condition("StoreReady")
    assert (told["status"], told["reason"]) == ("False", reasons.TLS_RANK_UNTRUSTED)
    for text in (
        "rank 0: ",
        "rank 1: ",
        "certificate is not trusted: unable to get local issuer",
        "Secret ranks-tls",
        "kubectl -n serving delete pod demo-r0-0 demo-r1-0 ",
        "nothing is lost",
    ):
        assert text in told["message"]
    before = len(served.cluster.writes)
    await again(served, 5)
    assert len(served.cluster.writes) == before
    # What the message says to do.
    for name in served.pods():
        served.cluster.remove(POD, KEY[0], name)
    await served.settle()
    await again(served, 5)
    await again(served, 5)
    assert served.condition("Ready")["status"] == "True", served.condition("Ready")
    assert engine_files(served)["ca.crt"] == third.pem


async def test_a_rank_that_restarted_with_a_renewed_secret_is_known_before_the_resync(
    served: Operator, ca: Ca, other_ca: Ca
) -> None:
    put(served, other_ca.issue(*NAMES), other_ca.pem)
    for name in served.pods():
        server = served.server(name)
        server.mounted = mounted_certificate(served.cluster, served.pods()[name])
        server.restart()
    served.reconciler.memory.of(KEY).proven.clear()
    for _ in range(3):
        await again(served, 5)
    assert served.condition("Ready")["status"] == "True", served.condition("Ready")
    assert engine_files(served)["ca.crt"] == other_ca.pem


async def test_a_comment_in_the_ca_file_reaches_no_engine(operator: Operator, ca: Ca) -> None:
    put(operator, ca.issue(*NAMES), f"# ours\n{ca.pem}\n# ends here\n")
    operator.apply(spec(**TLS))
    await operator.settle()
    assert engine_files(operator)["ca.crt"] == ca.pem
    await operator.resync()
    name = "demo-r0-0"
    for status in ("False", "True"):
        conditions = [
            {**each, "status": status} if each["type"] == "Ready" else each
            for each in operator.pods()[name]["status"]["conditions"]
        ]
        operator.cluster.edit(POD, KEY[0], name, {"status": {"conditions": conditions}})
        operator.queue.add(KEY, dirty=frozenset({"StatefulSet"}))
        await operator.reconcile_all()
        assert engine_files(operator)["ca.crt"] == ca.pem
    assert "Repaired" not in operator.recorder.reasons()


async def test_a_mended_secret_is_loaded_before_the_resync(served: Operator, ca: Ca) -> None:
    """Only its certificate tells that ranks are not as wanted any more."""
    old = certificates(served)
    first = ca.issue(*NAMES)
    put(served, Pair(first.certificate, "junk"), ca.pem)
    await served.resync()
    assert served.condition("StoreReady")["reason"] == reasons.TLS_SECRET_INVALID
    put(served, first, ca.pem)
    deliver(served)
    await again(served, 31)
    assert not set(old) & set(certificates(served))

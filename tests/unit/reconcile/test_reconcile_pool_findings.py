"""What the status says of pods of the pool that have another Secret than the tier's, on fakes."""

from generation_harness import NAME, NAMESPACE, A, engine
from tier_harness import KEY, Operator

from kvtier.cluster.protocol import POD


def told(operator: Operator) -> list[str]:
    found = operator.status().get("findings", ())
    return [each["message"] for each in found if each["reason"] == "AnotherSecret"]


def mount(operator: Operator, pod: str, secret: str) -> None:
    """As a new pod with it: nobody may edit a volume."""
    body = operator.cluster.peek(POD, NAMESPACE, pod)
    assert body is not None
    operator.cluster.remove(POD, NAMESPACE, pod)
    body["metadata"].pop("uid")
    body["spec"]["volumes"].append({"name": "other", "secret": {"secretName": secret}})
    operator.cluster.seed(body)


async def seen(operator: Operator) -> list[str]:
    operator.queue.add(KEY, dirty=frozenset({"Engine"}))
    await operator.settle()
    return told(operator)


async def test_a_pod_with_another_tier_s_secret_is_named_with_it(ready: Operator) -> None:
    engine(ready, "right", revision="r1", generation=A)
    engine(ready, "wrong", revision="r1", generation=A)
    assert await seen(ready) == []
    mount(ready, "wrong", f"other-engine-{A}")
    (message,) = await seen(ready)
    assert message.startswith(
        "1 pod of 2 in the pool mount an engine Secret that is not this tier's, such as wrong with "
        f"other-engine-{A}: give them the one in status.engineSecret"
    )
    ready.cluster.remove(POD, NAMESPACE, "wrong")
    assert await seen(ready) == []


async def test_a_generation_that_there_is_not_is_named_and_other_secrets_are_not(
    ready: Operator,
) -> None:
    engine(ready, "mistyped", revision="r1", generation="0" * 12, ready=False)
    engine(ready, "right", revision="r1", generation=A)
    for secret in ("tls", "other-engine-config", f"{NAME}-operator", f"{NAME}-engine-{A}"):
        mount(ready, "right", secret)
    (message,) = await seen(ready)
    assert f"such as mistyped with {NAME}-engine-000000000000" in message
    assert message.startswith("1 pod of 2 ")

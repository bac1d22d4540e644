"""What tests of probes do with a tier on fakes, and what they look at."""

from typing import Any

from tier_harness import KEY, Operator, again

from kvtier.cluster.protocol import JOB, TIER, Object
from kvtier.plan.probing import REQUESTED

NAMESPACE = KEY[0]
JOB_NAME = "demo-probe"


async def probed(operator: Operator, looks: int = 6) -> dict[str, Any]:
    operator.links = {node: rate for node, rate in operator.links.items() if rate is not None}
    for _ in range(looks):
        await again(operator)
    found: dict[str, Any] = operator.status()["measured"]
    assert found["evidence"] == "Probed", found
    return found


def job(operator: Operator) -> Object | None:
    return operator.cluster.peek(JOB, NAMESPACE, JOB_NAME)


def asked_of_jobs(operator: Operator) -> list[str]:
    return [each.verb for each in operator.cluster.requests if each.kind is JOB]


def ask(operator: Operator, when: str) -> None:
    operator.cluster.edit(TIER, *KEY, {"metadata": {"annotations": {REQUESTED: when}}})

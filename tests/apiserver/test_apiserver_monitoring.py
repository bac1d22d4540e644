"""The chart's PodMonitors and PrometheusRule by the Prometheus operator's own CRDs."""

import copy
import json
from collections.abc import Callable
from typing import Any

import monitoring_kinds
import pytest
from apiserver_process import ApiServer
from webhook_chart import rendered

from programs import CannotStart

NAMESPACE = "kvtier-monitoring"
ON = ("monitoring.podMonitor.enabled=true", "monitoring.prometheusRule.enabled=true")
# The first of these fetches a module, and starts the API server.
pytestmark = pytest.mark.timeout(400)

Object = dict[str, Any]


@pytest.fixture(scope="module")
def taught(apiserver: ApiServer) -> ApiServer:
    """The API server with these kinds and a namespace. They stay, like those of the gateways."""
    try:
        monitoring_kinds.teach(apiserver)
    except CannotStart as reason:
        pytest.fail(str(reason), pytrace=False)
    made = apiserver.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    )
    assert made.code == 0, made.message
    return apiserver


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Object]:
    """What the chart makes of them, with every part of it on."""
    home = tmp_path_factory.mktemp("helm")
    found = rendered(*ON, "limiter.enabled=true", namespace=NAMESPACE, home=home)
    return {
        (each["kind"], each["metadata"]["name"]): each
        for each in found
        if each["apiVersion"].startswith(monitoring_kinds.GROUP)
    }


def test_each_object_is_made_without_a_warning_and_kept_as_rendered(
    taught: ApiServer, objects: dict[tuple[str, str], Object]
) -> None:
    assert sorted(objects) == [
        ("PodMonitor", "kvtier"),
        ("PodMonitor", "kvtier-limiter"),
        ("PodMonitor", "kvtier-webhook"),
        ("PrometheusRule", "kvtier"),
    ]
    for (kind, name), document in objects.items():
        made = taught.apply(document, "--validate=strict")
        assert (made.code, made.err) == (0, ""), (kind, name)
        shown = taught.kubectl("get", "-n", NAMESPACE, kind, name, "-o", "json")
        # These CRDs have no defaults: what is kept is what was sent, field by field.
        assert json.loads(shown.out)["spec"] == document["spec"], (kind, name)


def setting(*path: str | int, to: Any) -> Callable[[Object], None]:
    """Writes ``to`` at ``path`` of a spec."""

    def write(spec: Any) -> None:
        for step in path[:-1]:
            spec = spec[step]
        spec[path[-1]] = to

    return write


ENDPOINT = ("podMetricsEndpoints", 0)
RULE = ("groups", 1, "rules", 0)
BROKEN: list[tuple[str, Callable[[Object], None], str]] = [
    ("PodMonitor", setting(*ENDPOINT, "interval", to="soon"), "interval: Invalid value"),
    ("PodMonitor", setting(*ENDPOINT, "honorLabels", to="true"), "honorLabels: Invalid value"),
    ("PodMonitor", setting(*ENDPOINT, "honourLabels", to=True), "unknown field"),
    ("PodMonitor", setting(*ENDPOINT, "scheme", to="gopher"), "scheme: Unsupported value"),
    ("PodMonitor", setting("selector", to=None), "spec.selector: Required value"),
    ("PrometheusRule", setting(*RULE, "for", to="ten minutes"), "for: Invalid value"),
    ("PrometheusRule", setting(*RULE, "alert", to=7), "alert: Invalid value"),
    ("PrometheusRule", setting(*RULE, "annotation", to={}), "unknown field"),
    ("PrometheusRule", setting(*RULE, to={"alert": "A"}), "expr: Required value"),
    ("PrometheusRule", setting("groups", 1, "name", to=""), "name in body should be at least 1"),
    ("PrometheusRule", setting("groups", 1, "name", to="kvtier.recorded"), "Duplicate value"),
]


@pytest.mark.parametrize(("kind", "change", "why"), BROKEN, ids=[f"{k}-{w}" for k, _, w in BROKEN])
def test_a_broken_object_is_refused(
    taught: ApiServer,
    objects: dict[tuple[str, str], Object],
    kind: str,
    change: Callable[[Object], None],
    why: str,
) -> None:
    broken = copy.deepcopy(objects[kind, "kvtier"])
    broken["metadata"]["name"] = "broken"
    change(broken["spec"])
    refused = taught.apply(broken, "--validate=strict")
    assert refused.code != 0
    assert why in refused.message

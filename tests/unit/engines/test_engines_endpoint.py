"""Where an engine shows its metrics, by what its pod says."""

from typing import Any

import pytest

from kvtier.engines.endpoint import Endpoint, endpoint_of


def pod(
    annotations: dict[str, str] | None = None,
    *,
    ports: list[dict[str, Any]] | None = None,
    ip: object = "10.244.1.7",
) -> dict[str, Any]:
    containers = [{"name": "vllm", **({"ports": ports} if ports is not None else {})}]
    return {
        "metadata": {"name": "engine", "annotations": annotations},
        "spec": {"containers": containers},
        "status": {"podIP": ip},
    }


def test_without_a_word_it_is_vllms_own_port_and_path() -> None:
    assert endpoint_of(pod()) == Endpoint("10.244.1.7", 8000, "/metrics")


def test_annotations_count_before_ports() -> None:
    told = {"prometheus.io/port": "9400", "prometheus.io/path": "/v2/metrics"}
    ports = [{"name": "metrics", "containerPort": 1234}]
    assert endpoint_of(pod(told, ports=ports)) == Endpoint("10.244.1.7", 9400, "/v2/metrics")


@pytest.mark.parametrize(
    ("names", "port"),
    [
        (["http", "metrics"], 101),
        (["http", "grpc"], 100),
        (["grpc"], 8000),
        ([], 8000),
    ],
)
def test_a_port_of_a_known_name_counts(names: list[str], port: int) -> None:
    ports = [{"name": name, "containerPort": 100 + i} for i, name in enumerate(names)]
    found = endpoint_of(pod(ports=ports))
    assert found is not None
    assert found.port == port


@pytest.mark.parametrize(
    "ip",
    ["", None, "engine.example.com", "127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "224.0.0.1"],
)
def test_only_a_pods_own_address_is_asked(ip: object) -> None:
    assert endpoint_of(pod(ip=ip)) is None


def test_addresses_of_both_families_are_taken() -> None:
    found = endpoint_of(pod(ip="fd00::7"))
    assert found is not None
    assert found.host == "fd00::7"


@pytest.mark.parametrize("told", [{"scrape": "false"}, {"scheme": "https"}])
def test_a_pod_may_ask_to_be_left_alone(told: dict[str, str]) -> None:
    assert endpoint_of(pod({f"prometheus.io/{name}": text for name, text in told.items()})) is None


@pytest.mark.parametrize(
    "path",
    ["metrics", "", "//evil\r\nHost: x", "/a b", "/m?drop=1", "/m#x", "/%2e", "/" + "a" * 128],
)
def test_a_path_that_is_none_is_not_taken(path: str) -> None:
    found = endpoint_of(pod({"prometheus.io/path": path}))
    assert found is not None
    assert found.path == "/metrics"


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "", "８０", "80 ", "9" * 400])
def test_a_port_that_is_none_is_not_taken(port: str) -> None:
    found = endpoint_of(pod({"prometheus.io/port": port}))
    assert found is not None
    assert found.port == 8000

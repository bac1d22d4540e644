"""The CRD as a real API server sees it."""

from apiserver_process import ApiServer


def test_the_generated_crd_is_accepted_without_a_structural_violation(
    apiserver: ApiServer,
) -> None:
    found = apiserver.kubectl(
        "get",
        "crd",
        "kvcachetiers.kvtier.dev",
        "-o",
        "jsonpath={range .status.conditions[*]}{.type}={.status} {end}",
    )
    assert "Established=True" in found.out
    assert "NonStructuralSchema" not in found.out

"""The kinds of the Prometheus operator that the chart makes, from that project's own CRDs."""

from apiserver_process import ApiServer

from programs import go_module

PROMETHEUS_OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.93.1"
PROMETHEUS_OPERATOR_SUM = "h1:4Juk8v93RdG1DSGD/mGp+SeQKPmnlLIj2iq3blLZgFY="
FOLDER = "example/prometheus-operator-crd"
GROUP = "monitoring.coreos.com"
PLURALS = ("podmonitors", "prometheusrules")


def teach(apiserver: ApiServer) -> None:
    """Make the server know these kinds, for as long as it runs.

    Raises CannotStart, in one line, when the files cannot be fetched.
    """
    module = go_module(PROMETHEUS_OPERATOR, checksum=PROMETHEUS_OPERATOR_SUM)
    for plural in PLURALS:
        made = apiserver.kubectl("create", "-f", str(module / FOLDER / f"{GROUP}_{plural}.yaml"))
        assert made.code == 0, made.message
    waited = apiserver.kubectl(
        "wait",
        "--for=condition=Established",
        "--timeout=50s",
        *(f"crd/{plural}.{GROUP}" for plural in PLURALS),
    )
    assert waited.code == 0, waited.message

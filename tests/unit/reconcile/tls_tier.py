"""A tier with TLS on fakes: its Secret, and what its engines and ranks have."""

import base64
from datetime import timedelta

from tier_harness import KEY, Operator, mounted_certificate

from certificates import Pair, secret
from kvtier.cluster.protocol import SECRET
from kvtier.store.protocol import Address, TlsName

NAMESPACE = KEY[0]
NAMES = ("demo-r0.serving.svc", "demo-r1.serving.svc")
DAY = timedelta(days=1)
TLS = {"tls": {"secretName": "ranks-tls"}}


def put(operator: Operator, pair: Pair, ca: str) -> None:
    """Make the TLS Secret, or renew it."""
    obj = secret("ranks-tls", pair, ca=ca, namespace=NAMESPACE)
    if operator.cluster.peek(SECRET, NAMESPACE, "ranks-tls") is None:
        operator.cluster.seed(obj)
    else:
        operator.cluster.edit(SECRET, NAMESPACE, "ranks-tls", {"data": obj["data"]})


def deliver(operator: Operator) -> None:
    """What the kubelets do within a minute or two."""
    for name, pod in operator.pods().items():
        operator.server(name).mounted = mounted_certificate(operator.cluster, pod)


def engine_files(operator: Operator) -> dict[str, str]:
    found = operator.cluster.peek(SECRET, NAMESPACE, operator.status()["engineSecret"])
    assert found is not None
    return {
        name: base64.b64decode(text).decode(errors="replace")
        for name, text in found["data"].items()
    }


def certificates(operator: Operator) -> list[str]:
    """The fingerprints that the ranks serve, as a client of any CA of the tests sees them."""
    found = []
    for index, name in enumerate(sorted(operator.pods())):
        address = operator.pods()[name]["status"]["podIP"]
        server = operator.server(name)
        cas = engine_files(operator)["ca.crt"]
        peer = server.verified(Address(address, tls=TlsName(NAMES[index], cas)))
        assert peer is not None
        found.append(peer.fingerprint)
    return found

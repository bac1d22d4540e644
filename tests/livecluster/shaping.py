"""Narrowing the links of one instance of deploy/local/cluster.

All machines hang on one bridge in the control plane's network namespace: what leaves a port of the
bridge goes to that node, and what leaves the node's own interface comes from it.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from livecluster.cluster import LiveCluster

BURST_BYTES = 256 * 1024
"""What passes at once: small beside a second's worth, large beside a packet of the bridge."""
LONGEST_QUEUE = "100ms"
VALKEY_PORT = 6379
RELAY = Path(__file__).with_name("delay.py")
RELAY_PORT = 16379


@dataclass(frozen=True, slots=True)
class Links:
    """The links of one running cluster. Rates are in bytes per second."""

    cluster: LiveCluster

    @contextmanager
    def into(self, node: str, *, rate: float) -> Iterator[None]:
        """All that reaches the node from others together gets no more than this."""
        with _shaped(self._pid("controlPlane"), device=node, rate=rate):
            yield

    @contextmanager
    def out_of(self, node: str, *, rate: float) -> Iterator[None]:
        """All that the node sends to others together gets no more than this."""
        with _shaped(self._pid(node), device="eth0", rate=rate):
            yield

    def inside(self, node: str) -> tuple[str, ...]:
        """What a command begins with that is to run in the node's network, and on this machine."""
        return _inside(self._pid(node))

    @contextmanager
    def delayed(self, node: str, *, seconds: float) -> Iterator[None]:
        """What pods of the node send to Valkey, and what comes back, takes so much longer each.

        Only connections that begin from now on.
        """
        inside = self.inside(node)
        pods = self._node(node)["podNetwork"]
        rule = ("PREROUTING", "-p", "tcp", "-s", pods, "--dport", str(VALKEY_PORT))
        rule += ("-j", "REDIRECT", "--to-ports", str(RELAY_PORT))
        with subprocess.Popen(
            [*inside, sys.executable, str(RELAY), str(RELAY_PORT), str(seconds)],
            stdout=subprocess.PIPE,
        ) as relay:
            try:
                assert relay.stdout is not None
                assert relay.stdout.readline(), "the relay did not start"
                subprocess.run([*inside, "iptables", "-t", "nat", "-I", *rule], check=True)
                try:
                    yield
                finally:
                    subprocess.run([*inside, "iptables", "-t", "nat", "-D", *rule], check=True)
            finally:
                relay.terminate()

    def _facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            (Path(self.cluster.facts["state"]) / "cluster.json").read_text()
        )
        return found

    def _node(self, name: str) -> dict[str, Any]:
        return {each["name"]: each for each in self._facts()["nodes"]}[name]

    def _pid(self, machine: str) -> int:
        if machine == "controlPlane":
            return int(self._facts()["controlPlane"]["machine"]["pid"])
        return int(self._node(machine)["machine"]["pid"])


@contextmanager
def _shaped(pid: int, *, device: str, rate: float) -> Iterator[None]:
    inside = (*_inside(pid), "tc", "qdisc")
    bits = f"{rate * 8:.0f}bit"
    shape = ("tbf", "rate", bits, "burst", str(BURST_BYTES), "latency", LONGEST_QUEUE)
    subprocess.run([*inside, "replace", "dev", device, "root", *shape], check=True)
    try:
        yield
    finally:
        subprocess.run([*inside, "del", "dev", device, "root"], check=True)


def _inside(pid: int) -> tuple[str, ...]:
    return ("nsenter", f"--net=/proc/{pid}/ns/net", "--")

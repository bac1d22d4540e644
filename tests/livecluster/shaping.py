"""Narrowing the links of one instance of deploy/local/cluster.

All machines hang on one bridge in the control plane's network namespace: what leaves a port of the
bridge goes to that node, and what leaves the node's own interface comes from it.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from livecluster.cluster import LiveCluster

BURST_BYTES = 256 * 1024
"""What passes at once: small beside a second's worth, large beside a packet of the bridge."""
LONGEST_QUEUE = "100ms"


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

    def _pid(self, machine: str) -> int:
        facts = json.loads((Path(self.cluster.facts["state"]) / "cluster.json").read_text())
        if machine == "controlPlane":
            return int(facts["controlPlane"]["machine"]["pid"])
        nodes = {each["name"]: each for each in facts["nodes"]}
        return int(nodes[machine]["machine"]["pid"])


@contextmanager
def _shaped(pid: int, *, device: str, rate: float) -> Iterator[None]:
    inside = ("nsenter", f"--net=/proc/{pid}/ns/net", "--", "tc", "qdisc")
    bits = f"{rate * 8:.0f}bit"
    shape = ("tbf", "rate", bits, "burst", str(BURST_BYTES), "latency", LONGEST_QUEUE)
    subprocess.run([*inside, "replace", "dev", device, "root", *shape], check=True)
    try:
        yield
    finally:
        subprocess.run([*inside, "del", "dev", device, "root"], check=True)

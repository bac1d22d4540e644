"""Names, addresses and paths of one instance. Nothing here touches the machine."""

import os
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from .errors import CannotRun

LOCAL = Path(__file__).resolve().parent.parent
CHECKOUT = LOCAL.parent.parent
MAX_OFFSET = 9
KUBERNETES_VERSION = "v1.37.2"


@dataclass(frozen=True, slots=True)
class Node:
    """One worker node. `number` counts from 1 and fixes its addresses."""

    number: int
    zone: str
    leaf: str

    @property
    def name(self) -> str:
        return f"node-{self.number}"


NODES = (
    Node(number=1, zone="zone-a", leaf="leaf-a"),
    Node(number=2, zone="zone-a", leaf="leaf-a"),
    Node(number=3, zone="zone-a", leaf="leaf-b"),
)
GPUS_PER_NODE = 8
CONTROL_PLANE = "control-plane"
DEFAULT_NAME = "kvtier"


def cache_root() -> Path:
    """Where binaries and images are kept between runs, shared by all instances."""
    base = os.environ.get("KVTIER_CACHE")
    if not base:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        base = f"{home}/kvtier"
    return Path(base).absolute() / "local"


def state_root() -> Path:
    """Where running instances keep their state, one directory each."""
    return Path(os.environ.get("KVTIER_STATE") or "/var/lib/kvtier-local").absolute()


@dataclass(frozen=True, slots=True)
class Instance:
    """One cluster. Two instances differ in name and offset and share nothing but the cache."""

    name: str
    offset: int

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,9}[a-z0-9])?", self.name):
            raise CannotRun(
                f"--name {self.name!r}: use 1 to 11 lower-case letters, digits or dashes, "
                "starting with a letter"
            )
        if not 0 <= self.offset <= MAX_OFFSET:
            raise CannotRun(f"--offset {self.offset}: use a number from 0 to {MAX_OFFSET}")

    @property
    def state(self) -> Path:
        return state_root() / self.name

    @property
    def config(self) -> Path:
        return self.state / "config"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.state / "audit.log"

    @property
    def facts(self) -> Path:
        return self.state / "cluster.json"

    @property
    def link(self) -> str:
        """The one network interface that the instance adds to the host (15 characters fit)."""
        return f"kvt-{self.name}"

    @property
    def network(self) -> IPv4Network:
        """Host, control plane and nodes."""
        return IPv4Network(f"10.{180 + self.offset}.0.0/24")

    @property
    def pods(self) -> IPv4Network:
        return IPv4Network(f"10.{240 + self.offset}.0.0/16")

    @property
    def services(self) -> IPv4Network:
        return IPv4Network(f"10.{96 + self.offset}.0.0/16")

    @property
    def host_address(self) -> IPv4Address:
        return self.network[1]

    @property
    def control_plane_address(self) -> IPv4Address:
        return self.network[2]

    @property
    def dns_address(self) -> IPv4Address:
        return self.services[10]

    @property
    def server(self) -> str:
        return f"https://{self.control_plane_address}:6443"

    @property
    def cgroup(self) -> str:
        """Path below every cgroup hierarchy; everything under it belongs to this instance."""
        return f"kvtier-{self.name}"

    def node_address(self, node: Node) -> IPv4Address:
        return self.network[10 + node.number]

    def node_pods(self, node: Node) -> IPv4Network:
        return IPv4Network((int(self.pods.network_address) + (node.number << 8), 24))

    def machine_dir(self, machine: str) -> Path:
        return self.state / machine

    def containerd_socket(self, node: Node) -> Path:
        return self.machine_dir(node.name) / "containerd.sock"

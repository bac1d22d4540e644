"""The machines of an instance, and the network between them and the host.

host ── kvt-NAME ── br0 (in the control plane) ─┬─ eth0 of node-1 ── its pods
                                                ├─ eth0 of node-2 ── its pods
                                                └─ eth0 of node-3 ── its pods
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

from . import build, cgroups, namespaces
from .errors import ClusterError
from .processes import Process, Records, kill
from .settings import CONTROL_PLANE, NODES, Instance, Node

# Kernel settings that a kubelet insists on and would change for the whole host: inside the
# machine it finds these values in plain files.
KUBELET_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
# Directories with a fixed path that must not be shared between machines.
PRIVATE_DIRECTORIES = {"kubelet": "/var/lib/kubelet", "cni": "/var/lib/cni", "log": "/var/log"}


def machine_record(machine: str) -> str:
    return f"machine-{machine}"


def title(*, instance: Instance, machine: str) -> str:
    """What the machine's first process calls itself: debris is found by it, record or not."""
    return f"kvtier-local/{instance.name}/{machine}"


def start(
    *, instance: Instance, records: Records, machine: str, connect: Callable[[int], None]
) -> Process:
    """The machine's first process, started unless it runs already.

    `connect` is given the process's id and plugs the new machine into the network; a machine
    that was left without (a killed `up`) is started anew.
    """
    connected = instance.machine_dir(machine) / "connected"
    running = records.get(machine_record(machine))
    if running:
        if connected.exists() and connected.read_text() == str(running.pid):
            return running
        kill([running])
    connected.unlink(missing_ok=True)
    if machine != CONTROL_PLANE:
        cgroups.create(f"{instance.cgroup}/{machine}")
    pid = namespaces.create_machine(
        setup=_prepare_mounts(instance.machine_dir(machine)),
        init=build.binaries()["pause"],
        title=title(instance=instance, machine=machine),
        hostname=machine,
        log=instance.logs / "machines.log",
    )
    process = records.add(name=machine_record(machine), pid=pid)
    connect(pid)
    connected.write_text(str(pid))
    return process


def _prepare_mounts(directory: Path) -> str:
    """The shell script that gives a machine its own view of the file system."""
    script = [
        "mount --make-rslave /",
        "mount -t proc proc /proc",
        "mount -t tmpfs -o mode=755 run /run",
    ]
    for name, target in PRIVATE_DIRECTORIES.items():
        (directory / name).mkdir(parents=True, exist_ok=True)
        Path(target).mkdir(parents=True, exist_ok=True)
        script.append(f"mount --bind '{directory}/{name}' {target}")
    for key, value in KUBELET_SYSCTLS.items():
        file = directory / "sysctl" / key.replace("/", ".")
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{value}\n")
        script.append(f"mount --bind '{file}' /proc/sys/{key}")
    return "\n".join(script)


def connect_node(machine: int, *, instance: Instance, node: Node, control_plane: int) -> None:
    """Plug a new node into the control plane's bridge."""
    # The kernel takes down a dead machine's interfaces in its own time.
    subprocess.run(
        [*namespaces.in_network(control_plane), "ip", "link", "delete", node.name],
        capture_output=True,
        check=False,
    )
    namespaces.run_in_network(
        machine=control_plane,
        argv=["ip", "-batch", "-"],
        stdin=f"""\
link add {node.name} type veth peer name eth0 netns {machine}
link set {node.name} master br0 up
route replace {instance.node_pods(node)} via {instance.node_address(node)}
""",
    )
    _forward(machine)
    others = "\n".join(
        f"route add {instance.node_pods(other)} via {instance.node_address(other)}"
        for other in NODES
        if other != node
    )
    prefix = instance.network.prefixlen
    namespaces.run_in_network(
        machine=machine,
        argv=["ip", "-batch", "-"],
        stdin=f"""\
link set lo up
link set eth0 up
addr add {instance.node_address(node)}/{prefix} dev eth0
route add default via {instance.control_plane_address}
{others}
""",
    )


def connect_control_plane(machine: int, *, instance: Instance) -> None:
    """Make the bridge, and the link and the routes from the host to it."""
    prefix = instance.network.prefixlen
    remove_host_link(instance)
    _forward(machine)
    # The API server calls webhooks by their Service. kube-proxy rewrites the address of a packet
    # only once a route has taken it.
    namespaces.run_in_network(
        machine=machine,
        argv=["ip", "-batch", "-"],
        stdin=f"""\
link set lo up
link add br0 type bridge
addr add {instance.control_plane_address}/{prefix} dev br0
link set br0 up
route add {instance.services} dev br0
""",
    )
    # The host reaches Services through the control plane's kube-proxy. Pods it reaches through
    # their own node: through another machine, answers would take another way back.
    routes = "\n".join(
        f"route replace {instance.node_pods(node)} via {instance.node_address(node)}"
        for node in NODES
    )
    _ip(
        f"""\
link add {instance.link} type veth peer name host netns {machine}
link set {instance.link} up
addr add {instance.host_address}/{prefix} dev {instance.link}
route replace {instance.services} via {instance.control_plane_address}
{routes}
"""
    )
    namespaces.run_in_network(
        machine=machine, argv=["ip", "link", "set", "host", "master", "br0", "up"]
    )


def _forward(machine: int) -> None:
    """Make the machine a router. Frames between nodes are no business of its packet filter."""
    settings = {
        "ipv4/ip_forward": 1,
        "ipv4/conf/all/rp_filter": 0,
        "ipv4/conf/default/rp_filter": 0,
        "ipv4/conf/all/send_redirects": 0,
        "ipv4/conf/default/send_redirects": 0,
        "bridge/bridge-nf-call-iptables": 0,
    }
    script = "\n".join(
        f"[ ! -e /proc/sys/net/{key} ] || echo {value} > /proc/sys/net/{key}"
        for key, value in settings.items()
    )
    namespaces.run_in_network(machine=machine, argv=["sh", "-ec", script])


def remove_host_link(instance: Instance) -> None:
    """Remove the host's end of the network, with its routes; it may be gone already."""
    subprocess.run(["ip", "link", "delete", instance.link], capture_output=True, check=False)


def _ip(batch: str) -> None:
    done = subprocess.run(
        ["ip", "-batch", "-"], input=batch, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ClusterError(f"the host's network: {' '.join(done.stderr.split())}")

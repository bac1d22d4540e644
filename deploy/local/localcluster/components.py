"""The programs of the cluster: which machine runs them, with which arguments."""

from dataclasses import dataclass
from pathlib import Path
from string import Template

from . import build, checks
from .settings import CONTROL_PLANE, LOCAL, NODES, Instance, Node

TEMPLATES = LOCAL / "config"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PAUSE_IMAGE = "docker.io/kvtier/pause:local"


@dataclass(frozen=True, slots=True)
class Component:
    """One long-running program. `name` is unique in the instance."""

    name: str
    machine: str
    argv: tuple[str, ...]

    def log(self, instance: Instance) -> Path:
        return instance.logs / f"{self.name}.log"

    @property
    def env(self) -> dict[str, str]:
        # Nothing of the caller's environment must matter.
        return {"PATH": PATH, "HOME": "/root"}


def write_configuration(instance: Instance) -> None:
    """Write every file that the components read, kubeconfigs included."""
    for user in ("kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns"):
        _write_kubeconfig(instance, user=user, to=instance.config / f"{user}.kubeconfig")
    _write_kubeconfig(instance, user="admin", to=instance.kubeconfig)
    instance.kubeconfig.chmod(0o600)
    for name in ("audit-policy.yaml", "Corefile", "kube-proxy.yaml", "kube-system.yaml"):
        _render(name, to=instance.config / name, values=_values(instance))
    for node in NODES:
        _write_kubeconfig(instance, user=node.name, to=instance.config / f"{node.name}.kubeconfig")
        values = _values(instance) | {
            "node": node.name,
            "address": str(instance.node_address(node)),
            "pods": str(instance.node_pods(node)),
            "directory": str(instance.machine_dir(node.name)),
            "socket": str(instance.containerd_socket(node)),
            # Without the capability, runc may not lower a pod's OOM score and every pod fails.
            "restrict_oom": str(not checks.has_capability(checks.CAP_SYS_RESOURCE)).lower(),
        }
        for name in ("kubelet.yaml", "containerd.toml"):
            _render(name, to=instance.config / f"{node.name}.{name}", values=values)
        _render(
            "cni.conflist",
            to=instance.config / f"{node.name}.cni" / "10-kvtier.conflist",
            values=values,
        )
    registries = instance.config / "registries" / "_default" / "hosts.toml"
    _render("registries.toml", to=registries, values={})
    (instance.config / "resolv.conf").write_text(f"nameserver {instance.dns_address}\n")


def _values(instance: Instance) -> dict[str, str]:
    return {
        "server": instance.server,
        "config": str(instance.config),
        "pki": str(instance.pki),
        "cgroup": instance.cgroup,
        "all_pods": str(instance.pods),
        "dns": str(instance.dns_address),
        "control_plane": str(instance.control_plane_address),
        "pause_image": PAUSE_IMAGE,
    }


def _render(name: str, *, to: Path, values: dict[str, str]) -> None:
    content = Template((TEMPLATES / name).read_text()).substitute(values)
    to.parent.mkdir(parents=True, exist_ok=True)
    # kube-proxy ends when its file is written, changed or not.
    if not to.exists() or to.read_text() != content:
        to.write_text(content)


def _write_kubeconfig(instance: Instance, *, user: str, to: Path) -> None:
    _render(
        "kubeconfig.yaml",
        to=to,
        values=_values(instance) | {"user": user, "name": f"kvtier-local-{instance.name}"},
    )


def etcd(instance: Instance) -> Component:
    argv = (
        str(build.binaries()["etcd"]),
        f"--data-dir={instance.machine_dir(CONTROL_PLANE) / 'etcd'}",
        # Reachable inside the control plane's network only.
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        # The data need not outlive the machine's power.
        "--unsafe-no-fsync",
        "--log-level=warn",
    )
    return Component("etcd", CONTROL_PLANE, argv)


def apiserver(instance: Instance) -> Component:
    pki = instance.pki
    argv = (
        str(build.binaries()["kube-apiserver"]),
        f"--advertise-address={instance.control_plane_address}",
        "--secure-port=6443",
        "--etcd-servers=http://127.0.0.1:2379",
        f"--service-cluster-ip-range={instance.services}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki}/service-account.pub",
        f"--service-account-signing-key-file={pki}/service-account.key",
        f"--audit-policy-file={instance.config}/audit-policy.yaml",
        f"--audit-log-path={instance.audit_log}",
        "--audit-log-format=json",
        "--audit-log-maxsize=1024",
        "--audit-log-maxbackup=1",
        "--profiling=false",
    )
    return Component("kube-apiserver", CONTROL_PLANE, argv)


def controllers(instance: Instance) -> list[Component]:
    """What starts once the API server answers: the rest of the control plane."""
    pki = instance.pki
    controller_manager = "kube-controller-manager"
    scheduler = "kube-scheduler"
    return [
        Component(
            controller_manager,
            CONTROL_PLANE,
            (
                str(build.binaries()[controller_manager]),
                f"--kubeconfig={instance.config}/{controller_manager}.kubeconfig",
                f"--root-ca-file={pki}/ca.crt",
                f"--service-account-private-key-file={pki}/service-account.key",
                f"--cluster-signing-cert-file={pki}/ca.crt",
                f"--cluster-signing-key-file={pki}/ca.key",
                "--use-service-account-credentials",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                "--profiling=false",
            ),
        ),
        Component(
            scheduler,
            CONTROL_PLANE,
            (
                str(build.binaries()[scheduler]),
                f"--kubeconfig={instance.config}/{scheduler}.kubeconfig",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                "--profiling=false",
            ),
        ),
        Component(
            "coredns",
            CONTROL_PLANE,
            (str(build.binaries()["coredns"]), "-conf", f"{instance.config}/Corefile"),
        ),
        _kube_proxy(instance, machine=CONTROL_PLANE),
    ]


def containerd(instance: Instance, node: Node) -> Component:
    argv = ("/usr/bin/containerd", "--config", f"{instance.config}/{node.name}.containerd.toml")
    return Component(f"containerd-{node.name}", node.name, argv)


def node_agents(instance: Instance, node: Node) -> list[Component]:
    """What makes a machine with containerd a node."""
    labels = {
        "topology.kubernetes.io/zone": node.zone,
        "kvtier.dev/leaf": node.leaf,
    }
    kubelet = (
        str(build.binaries()["kubelet"]),
        f"--config={instance.config}/{node.name}.kubelet.yaml",
        f"--kubeconfig={instance.config}/{node.name}.kubeconfig",
        f"--hostname-override={node.name}",
        f"--node-ip={instance.node_address(node)}",
        f"--node-labels={','.join(f'{key}={value}' for key, value in labels.items())}",
    )
    netpol = (
        str(build.binaries()["netpol"]),
        f"--kubeconfig={instance.config}/kube-proxy.kubeconfig",
        f"--node={node.name}",
        f"--services={instance.services}",
    )
    return [
        Component(f"kubelet-{node.name}", node.name, kubelet),
        _kube_proxy(instance, machine=node.name),
        Component(f"netpol-{node.name}", node.name, netpol),
    ]


def _kube_proxy(instance: Instance, *, machine: str) -> Component:
    # It waits for a Node of its name; the control plane is none and borrows a name.
    node = NODES[0].name if machine == CONTROL_PLANE else machine
    argv = (
        str(build.binaries()["kube-proxy"]),
        f"--config={instance.config}/kube-proxy.yaml",
        f"--hostname-override={node}",
    )
    return Component(f"kube-proxy-{machine}", machine, argv)

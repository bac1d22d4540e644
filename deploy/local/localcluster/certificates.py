"""Keys and certificates of one instance, made with the openssl command line.

Extensions are those that Python 3.13's strict verification asks for: key usage on the CA,
subject and authority key identifiers.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import ClusterError
from .settings import NODES, Instance

DAYS = "3650"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A leaf: who it says it is, and for a server the names and addresses it answers to."""

    name: str
    common_name: str
    organisation: str = ""
    hosts: tuple[str, ...] = ()


def wanted(instance: Instance) -> list[Certificate]:
    """Every leaf certificate of the instance."""
    api_hosts = (
        "DNS:localhost",
        "DNS:kubernetes",
        "DNS:kubernetes.default",
        "DNS:kubernetes.default.svc",
        "DNS:kubernetes.default.svc.cluster.local",
        "IP:127.0.0.1",
        f"IP:{instance.control_plane_address}",
        f"IP:{instance.services[1]}",
    )
    return [
        Certificate("apiserver", "kube-apiserver", hosts=api_hosts),
        Certificate("apiserver-kubelet", "kube-apiserver-kubelet-client", "system:masters"),
        Certificate("admin", "kubernetes-admin", "system:masters"),
        Certificate("kube-controller-manager", "system:kube-controller-manager"),
        Certificate("kube-scheduler", "system:kube-scheduler"),
        Certificate("kube-proxy", "system:kube-proxy"),
        Certificate("coredns", "system:coredns"),
        *(
            Certificate(
                node.name,
                f"system:node:{node.name}",
                "system:nodes",
                (f"DNS:{node.name}", f"IP:{instance.node_address(node)}"),
            )
            for node in NODES
        ),
    ]


def make(instance: Instance) -> None:
    """Make the CA, the service account key and every leaf, unless they are all there."""
    done = instance.pki / "complete"
    if done.exists():
        return
    instance.pki.mkdir(parents=True, exist_ok=True)
    instance.pki.chmod(0o700)
    _make_key(instance.pki / "service-account.key")
    _openssl(
        ["pkey", "-in", "service-account.key", "-pubout", "-out", "service-account.pub"],
        directory=instance.pki,
    )
    _make_key(instance.pki / "ca.key")
    _openssl(
        [
            *("req", "-x509", "-new", "-key", "ca.key", "-out", "ca.crt", "-days", DAYS),
            *("-subj", f"/CN=kvtier-local-{instance.name}"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"),
        ],
        directory=instance.pki,
    )
    for serial, certificate in enumerate(wanted(instance), start=1):
        _make_leaf(certificate, serial=serial, directory=instance.pki)
    done.touch()


def _make_leaf(certificate: Certificate, *, serial: int, directory: Path) -> None:
    name = certificate.name
    usage = "clientAuth,serverAuth" if certificate.hosts else "clientAuth"
    extensions = [
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature,keyEncipherment",
        f"extendedKeyUsage={usage}",
        "subjectKeyIdentifier=hash",
        "authorityKeyIdentifier=keyid",
    ]
    if certificate.hosts:
        extensions.append(f"subjectAltName={','.join(certificate.hosts)}")
    (directory / f"{name}.ext").write_text("\n".join(extensions) + "\n")
    subject = f"/O={certificate.organisation}" if certificate.organisation else ""
    _make_key(directory / f"{name}.key")
    _openssl(
        [
            *("req", "-new", "-key", f"{name}.key", "-out", f"{name}.csr"),
            *("-subj", f"{subject}/CN={certificate.common_name}"),
        ],
        directory=directory,
    )
    _openssl(
        [
            *("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", "-days", DAYS),
            *("-CA", "ca.crt", "-CAkey", "ca.key", "-set_serial", str(serial)),
            *("-extfile", f"{name}.ext"),
        ],
        directory=directory,
    )
    for suffix in ("csr", "ext"):
        (directory / f"{name}.{suffix}").unlink()


def _make_key(path: Path) -> None:
    _openssl(
        ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path.name],
        directory=path.parent,
    )
    path.chmod(0o600)


def _openssl(arguments: Sequence[str], *, directory: Path) -> None:
    done = subprocess.run(
        ["openssl", *arguments], cwd=directory, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ClusterError(f"openssl {arguments[0]} failed: {' '.join(done.stderr.split())}")

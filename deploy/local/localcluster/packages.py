"""Debian packages that the cluster runs on."""

import os
import shutil
import subprocess
from pathlib import Path

from .errors import CannotRun, ClusterError

PACKAGES = (
    "ca-certificates",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "debian-archive-keyring",
    "ethtool",
    "iproute2",
    "ipset",
    "iptables",
    "nginx-light",
    "openssl",
    "prometheus",
    "prometheus-alertmanager",
    "runc",
    "socat",
    "util-linux",
    "wrk",
)
POLICY = Path("/usr/sbin/policy-rc.d")


def missing() -> list[str]:
    """Packages of the list that are not installed."""
    said = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *PACKAGES],
        capture_output=True,
        text=True,
        check=False,
    )
    installed = {
        line.split()[0] for line in said.stdout.splitlines() if line.endswith(" installed")
    }
    return [package for package in PACKAGES if package not in installed]


def check() -> None:
    """Refuse a machine without Debian's package tools."""
    if not shutil.which("dpkg-query") or not shutil.which("apt-get"):
        raise CannotRun(
            "Debian's apt-get is needed (tried on Debian 12), and this machine has none"
        )


def install() -> None:
    """Install what is missing; starts no service that a package brings."""
    packages = missing()
    if not packages:
        return
    print(f"installing {' '.join(packages)}", flush=True)
    # Foreign sources that cannot be reached make `update` fail; Debian's own decide below.
    subprocess.run(["apt-get", "-q", "update"], capture_output=True, check=False)
    if ours := not POLICY.exists():
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        done = subprocess.run(
            ["apt-get", "-q", "-y", "--no-install-recommends", "install", *packages],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        if ours:
            POLICY.unlink(missing_ok=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        raise ClusterError(f"apt-get install failed: {lines[-1] if lines else done.stderr.strip()}")

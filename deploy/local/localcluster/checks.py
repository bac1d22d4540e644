"""Can this machine run the cluster at all? One line says why not."""

import json
import os
import platform
import subprocess
import tempfile
from ipaddress import IPv4Network
from pathlib import Path

from . import build, namespaces, packages
from .errors import CannotRun
from .settings import Instance

CAP_SYS_ADMIN = 21
CAP_SYS_RESOURCE = 24


def has_capability(number: int) -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def check_root() -> None:
    """Refuse everyone else: nothing here but printing the environment works without."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise CannotRun(
            f"Linux on x86-64 is needed, this is {platform.system()} on {platform.machine()}"
        )
    if os.geteuid() != 0:
        raise CannotRun("root is needed (namespaces, mounts, packages): run it with sudo")


def check_machine(instance: Instance) -> None:
    """Raise CannotRun unless the cluster can be started here. Changes nothing that stays."""
    if not has_capability(CAP_SYS_ADMIN):
        raise CannotRun("CAP_SYS_ADMIN is needed: this looks like an unprivileged container")
    if reason := namespaces.can_unshare():
        raise CannotRun(f"this machine does not let us make namespaces ({reason})")
    packages.check()
    build.check_go()
    _check_overlay(instance)
    _check_cgroups()
    check_addresses(instance)


def _check_overlay(instance: Instance) -> None:
    instance.state.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".overlay-", dir=instance.state.parent) as directory:
        for name in ("lower", "upper", "work", "merged"):
            Path(directory, name).mkdir()
        options = f"lowerdir={directory}/lower,upperdir={directory}/upper,workdir={directory}/work"
        mount = f'mount -t overlay -o "{options}" overlay "{directory}/merged"'
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", mount], capture_output=True, check=False
        )
    if done.returncode:
        raise CannotRun(
            f"overlayfs does not work in {instance.state.parent}: set KVTIER_STATE to a directory "
            "on ext4 or xfs"
        )


def _check_cgroups() -> None:
    if (
        not Path("/sys/fs/cgroup/memory").is_dir()
        and not Path("/sys/fs/cgroup/cgroup.controllers").exists()
    ):
        raise CannotRun("no cgroups are mounted at /sys/fs/cgroup (neither version 1 nor 2)")


def check_addresses(instance: Instance) -> None:
    """Refuse an offset whose networks something else on this machine already uses."""
    said = subprocess.run(["ip", "-j", "route"], capture_output=True, text=True, check=False)
    for route in json.loads(said.stdout or "[]"):
        if route["dst"] == "default" or route.get("dev") == instance.link:
            continue
        theirs = IPv4Network(route["dst"])
        for ours in (instance.network, instance.pods, instance.services):
            if ours.overlaps(theirs):
                raise CannotRun(
                    f"{ours} is already routed to {route.get('dev')}: choose another --offset"
                )

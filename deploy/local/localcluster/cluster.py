"""Bring an instance up, take it down, say how it is."""

import fcntl
import functools
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import (
    build,
    certificates,
    cgroups,
    checks,
    components,
    images,
    kubectl,
    load,
    machines,
    namespaces,
    packages,
)
from .components import Component
from .errors import CannotRun, ClusterError
from .processes import Process, Records, find_by_title, kill
from .settings import CONTROL_PLANE, DEFAULT_NAME, GPUS_PER_NODE, NODES, Instance, state_root

API_SECONDS = 90.0
NODE_SECONDS = 90.0


def records(instance: Instance) -> Records:
    return Records(instance.state / "pids")


@contextmanager
def locked(instance: Instance) -> Iterator[None]:
    """One `up` or `down` of an instance at a time; a second one waits."""
    state_root().mkdir(parents=True, exist_ok=True)
    with (state_root() / f".{instance.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def all_components(instance: Instance) -> list[Component]:
    return [
        components.etcd(instance),
        components.apiserver(instance),
        *components.controllers(instance),
        *(components.containerd(instance, node) for node in NODES),
        *(agent for node in NODES for agent in components.node_agents(instance, node)),
    ]


def dead(instance: Instance) -> list[str]:
    """Names of the processes that should run and do not."""
    known = records(instance)
    expected = [machines.machine_record(name) for name in (CONTROL_PLANE, *_node_names())]
    expected += [component.name for component in all_components(instance)]
    return [name for name in expected if known.get(name) is None]


def healthy(instance: Instance) -> bool:
    return (
        instance.facts.exists()
        and not dead(instance)
        and kubectl.answers(instance)
        and kubectl.ready_nodes(instance) == set(_node_names())
    )


def up(instance: Instance) -> None:
    """Bring the instance up from whatever state it is in; quick if it is up already."""
    _check_offset(instance)
    with locked(instance):
        if healthy(instance):
            # An `up` that was interrupted may have started what its file does not know of.
            _write_facts(instance)
            print(f"cluster {instance.name} is up: {instance.server}")
            return
        checks.check_machine(instance)
        packages.install()
        build.build()
        started = time.monotonic()
        print(f"starting cluster {instance.name}: less than a minute", flush=True)
        known = records(instance)
        if known.get(machines.machine_record(CONTROL_PLANE)) is None:
            _remove(instance)
        for directory in (instance.config, instance.logs):
            directory.mkdir(parents=True, exist_ok=True)
        certificates.make(instance)
        components.write_configuration(instance)
        _write_facts(instance)
        _start_everything(instance)
        _write_facts(instance)
        print(
            f"cluster {instance.name} is up after {time.monotonic() - started:.1f} s: "
            f"{len(NODES)} nodes, {instance.server}\n"
            f"  export KUBECONFIG={instance.kubeconfig}"
        )


def _start_everything(instance: Instance) -> None:
    known = records(instance)
    control_plane = machines.start(
        instance=instance,
        records=known,
        machine=CONTROL_PLANE,
        connect=functools.partial(machines.connect_control_plane, instance=instance),
    )
    _start(instance, components.etcd(instance))
    _start(instance, components.apiserver(instance))
    for node in NODES:
        machines.start(
            instance=instance,
            records=known,
            machine=node.name,
            connect=functools.partial(
                machines.connect_node, instance=instance, node=node, control_plane=control_plane.pid
            ),
        )
        _start(instance, components.containerd(instance, node))
    load.load(instance, [images.pause()])
    kubectl.wait(
        until=lambda: kubectl.answers(instance),
        what=f"the API server (log: {instance.logs}/kube-apiserver.log)",
        seconds=API_SECONDS,
    )
    for component in components.controllers(instance):
        _start(instance, component)
    # A kubelet that starts takes away what it does not know, GPUs too, before its first report.
    since = {}
    for node in NODES:
        for agent in components.node_agents(instance, node):
            if _start(instance, agent):
                since[node.name] = time.time()
    manifest = instance.config / "kube-system.yaml"
    kubectl.run(instance, "apply", "--server-side", "--force-conflicts", "-f", str(manifest))
    kubectl.wait(
        until=lambda: kubectl.ready_nodes(instance, since=since) == set(_node_names()),
        what=f"three ready nodes (logs: {instance.logs}/kubelet-node-*.log)",
        seconds=NODE_SECONDS,
    )
    _advertise_gpus(instance)
    if ended := dead(instance):
        raise ClusterError(f"{ended[0]} ended after its start: see {instance.logs}/{ended[0]}.log")


def _start(instance: Instance, component: Component) -> bool:
    """Start a component unless it runs; say whether it had to be started."""
    known = records(instance)
    if known.get(component.name):
        return False
    machine = known.get(machines.machine_record(component.machine))
    if machine is None:
        raise ClusterError(f"machine {component.machine} died: see {instance.logs}/machines.log")
    pid = namespaces.start_in_machine(
        machine=machine.pid,
        argv=component.argv,
        env=component.env,
        log=component.log(instance),
    )
    known.add(name=component.name, pid=pid)
    return True


def _advertise_gpus(instance: Instance) -> None:
    """No device plugin runs here: say in its place that every node has GPUs."""
    patch = json.dumps({"status": {"capacity": {"nvidia.com/gpu": str(GPUS_PER_NODE)}}})
    for name in _node_names():
        kubectl.run(instance, "patch", "node", name, "--subresource=status", "-p", patch)


def tools() -> dict[str, Path]:
    """Every program by name, for tests and scripts."""
    return build.binaries() | {"promtool": Path("/usr/bin/promtool"), "ctr": Path("/usr/bin/ctr")}


def facts(instance: Instance) -> dict[str, object]:
    """What tests and scripts need to know; written to cluster.json."""
    known = records(instance)

    def process(name: str) -> dict[str, int] | None:
        found = known.get(name)
        return {"pid": found.pid, "started": found.started} if found else None

    return {
        "name": instance.name,
        "offset": instance.offset,
        "kubeconfig": str(instance.kubeconfig),
        "server": instance.server,
        "auditLog": str(instance.audit_log),
        "state": str(instance.state),
        "logs": str(instance.logs),
        "tools": {name: str(path) for name, path in tools().items()},
        "hostLink": instance.link,
        "hostAddress": str(instance.host_address),
        "podNetwork": str(instance.pods),
        "serviceNetwork": str(instance.services),
        "dns": str(instance.dns_address),
        "controlPlane": {
            "address": str(instance.control_plane_address),
            "machine": process(machines.machine_record(CONTROL_PLANE)),
        },
        "nodes": [
            {
                "name": node.name,
                "zone": node.zone,
                "leaf": node.leaf,
                "address": str(instance.node_address(node)),
                "podNetwork": str(instance.node_pods(node)),
                "containerdSocket": str(instance.containerd_socket(node)),
                "machine": process(machines.machine_record(node.name)),
            }
            for node in NODES
        ],
        "components": {
            component.name: {
                "machine": component.machine,
                "log": str(component.log(instance)),
                "process": process(component.name),
            }
            for component in all_components(instance)
        },
    }


def _write_facts(instance: Instance) -> None:
    unfinished = instance.facts.with_suffix(".new")
    unfinished.write_text(json.dumps(facts(instance), indent=2) + "\n")
    unfinished.rename(instance.facts)


def running() -> list[str]:
    """Names of the instances whose control plane runs."""
    rows = [json.loads(found.read_text()) for found in state_root().glob("*/cluster.json")]
    found = [Instance(name=row["name"], offset=row["offset"]) for row in rows]
    control_plane = machines.machine_record(CONTROL_PLANE)
    return sorted(each.name for each in found if records(each).get(control_plane))


def not_there(instance: Instance) -> ClusterError:
    """That the instance does not run, and which do."""
    others = running()
    name = "" if instance.name == DEFAULT_NAME else f" --name {instance.name}"
    return ClusterError(
        f"cluster {instance.name} does not run: start it by `cluster up{name}`"
        + (f", or give one that does: --name {' or '.join(others)}" if others else "")
    )


def load_images(instance: Instance) -> None:
    """Build the images that the cache lacks and import them where they are missing."""
    if records(instance).get(machines.machine_record(CONTROL_PLANE)) is None:
        raise not_there(instance)
    started = time.monotonic()
    print(
        "making the container images that are missing, and importing them into every node: "
        "minutes the first time, seconds after that",
        flush=True,
    )
    wanted = images.all_images()
    count = load.load(instance, wanted)
    for image in wanted:
        print(f"  {image.names[-1]}")
    print(f"{count} imports into {len(NODES)} nodes, {time.monotonic() - started:.1f} s")


def down(instance: Instance) -> None:
    """Stop the instance's own processes and remove all that it left on this machine."""
    with locked(instance):
        existed = instance.state.exists()
        _remove(instance)
    print(f"cluster {instance.name} is {'down' if existed else 'not there: nothing to do'}")


def _remove(instance: Instance) -> None:
    """Also for debris: an instance whose processes were killed, or whose records are lost."""
    known = records(instance)
    first = [p for p in known.all() if p.name.startswith("machine-")]
    titles = [
        machines.title(instance=instance, machine=name) for name in (CONTROL_PLANE, *_node_names())
    ]
    # A machine's first process takes all others of the machine with it.
    kill(first + find_by_title(titles))
    kill(known.all())
    machines.remove_host_link(instance)
    cgroups.remove(instance.cgroup)
    if instance.state.exists():
        shutil.rmtree(instance.state)


def _check_offset(instance: Instance) -> None:
    """Refuse to change an instance's offset, or to take that of one that runs."""
    for other in state_root().glob("*/cluster.json"):
        row = json.loads(other.read_text())
        theirs = Instance(name=row["name"], offset=row["offset"])
        if records(theirs).get(machines.machine_record(CONTROL_PLANE)) is None:
            # The kernel takes its time to drop a dead machine's network.
            machines.remove_host_link(theirs)
            continue
        if row["name"] == instance.name and row["offset"] != instance.offset:
            raise CannotRun(
                f"cluster {instance.name} exists with --offset {row['offset']}: use that, "
                "or take it down first"
            )
        if row["name"] != instance.name and row["offset"] == instance.offset:
            raise CannotRun(
                f"--offset {instance.offset} is taken by cluster {row['name']}: use another"
            )


def _node_names() -> list[str]:
    return [node.name for node in NODES]


def processes(instance: Instance) -> list[tuple[str, Process | None]]:
    """Every process that should run, with what runs."""
    known = records(instance)
    names = [machines.machine_record(name) for name in (CONTROL_PLANE, *_node_names())]
    names += [component.name for component in all_components(instance)]
    return [(name, known.get(name)) for name in names]

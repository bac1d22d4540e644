"""The command line of deploy/local/cluster."""

import argparse
import json
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType

from . import build, checks, cluster
from .errors import ClusterError
from .settings import CHECKOUT, DEFAULT_NAME, Instance, state_root


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="cluster", description="A real Kubernetes cluster on this machine."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    helps = {
        "up": "start it, or repair it; builds and installs what is missing",
        "down": "stop it and remove everything it left on this machine",
        "status": "say what runs; exit code 1 unless all is well",
        "images": "build the images that are missing and import them into every node",
        "env": "print shell lines for one that runs: KUBECONFIG, PATH, and the paths of the tools",
    }
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--name", default=DEFAULT_NAME, help=f"which instance (default: {DEFAULT_NAME})"
    )
    common.add_argument(
        "--offset",
        type=int,
        help="0 to 9, another one for each instance that runs at the same time (default: 0)",
    )
    for name, text in helps.items():
        commands.add_parser(name, help=text, description=text, parents=[common])
    text = "build the binaries into the cache, start nothing"
    commands.add_parser("build", help=text, description=text)
    return parser.parse_args()


def _instance(name: str, offset: int | None) -> Instance:
    """Without --offset an instance that exists keeps the one it has."""
    recorded = state_root() / name / "cluster.json"
    if offset is None and recorded.exists():
        offset = json.loads(recorded.read_text())["offset"]
    return Instance(name=name, offset=offset or 0)


def _status(instance: Instance) -> int:
    rows = cluster.processes(instance)
    if not any(process for _, process in rows):
        print(f"cluster {instance.name} is down")
        if others := cluster.running():
            print(f"running: {', '.join(others)}")
        return 1
    for name, process in rows:
        print(f"{name:32} {f'pid {process.pid}' if process else 'DEAD'}")
    well = cluster.healthy(instance)
    print(f"{instance.server}  KUBECONFIG={instance.kubeconfig}")
    print("all is well" if well else "not well: `cluster up` repairs it")
    return 0 if well else 1


def _env(instance: Instance) -> None:
    if instance.name not in cluster.running():
        raise cluster.not_there(instance)
    tools = cluster.tools()
    lines = {
        "KUBECONFIG": instance.kubeconfig,
        "KVTIER_CLUSTER": instance.facts,
        "KVTIER_AUDIT_LOG": instance.audit_log,
        "KUBECTL": tools["kubectl"],
        "HELM": tools["helm"],
        "HELM3": tools["helm3"],
        "PROMTOOL": tools["promtool"],
    }
    for name, value in lines.items():
        print(f"export {name}={shlex.quote(str(value))}")
    directories = dict.fromkeys(str(Path(tools[name]).parent) for name in ("kubectl", "helm"))
    # Last, since it has a Python too.
    own = CHECKOUT / ".venv" / "bin"
    last = f":{shlex.quote(str(own))}" if (own / "kvtier").exists() else ""
    print(f'export PATH={shlex.quote(":".join(directories))}:"$PATH"{last}')


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


def main() -> int:
    """Run one command; the exit code is 0, 1 (it failed) or 2 (it cannot run here)."""
    # As Ctrl-C: a build that goes on without us would be nobody's.
    signal.signal(signal.SIGTERM, _interrupt)
    arguments = _arguments()
    try:
        if arguments.command == "build":
            build.build()
            return 0
        if arguments.command != "env":
            checks.check_root()
        instance = _instance(arguments.name, arguments.offset)
        match arguments.command:
            case "up":
                cluster.up(instance)
            case "down":
                cluster.down(instance)
            case "status":
                return _status(instance)
            case "images":
                cluster.load_images(instance)
            case "env":
                _env(instance)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cluster: interrupted; run the same command again to go on", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

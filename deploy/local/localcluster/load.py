"""Import images into every node's containerd."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

from . import kubectl
from .errors import ClusterError
from .oci import Image
from .settings import NODES, Instance, Node

NAMESPACE = "k8s.io"


def load(instance: Instance, wanted: list[Image]) -> int:
    """Import images into every node that lacks them; return how many imports that took."""
    with ThreadPoolExecutor(max_workers=len(NODES)) as pool:
        return sum(pool.map(lambda node: _load_node(instance, node, wanted=wanted), NODES))


def _load_node(instance: Instance, node: Node, *, wanted: list[Image]) -> int:
    _wait_for_containerd(instance, node)
    present = _images(instance, node)
    lacking = [
        image for image in wanted if any(present.get(name) != image.digest for name in image.names)
    ]
    for image in lacking:
        _import(instance, node, image=image)
    return len(lacking)


def _import(instance: Instance, node: Node, *, image: Image) -> None:
    contents = frozenset(_ctr_output(instance, node, "content", "list", "--quiet").split())
    with subprocess.Popen(
        [*_ctr(instance, node), "images", "import", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin
        assert process.stderr
        try:
            image.write_archive(stream=process.stdin, without=contents)
            process.stdin.close()
        except BrokenPipeError:
            pass  # It says why on its standard error.
        complaint = process.stderr.read().decode(errors="replace")
    if process.returncode:
        raise ClusterError(
            f"importing {image.names[0]} into {node.name}: {' '.join(complaint.split())}"
        )


def _ctr(instance: Instance, node: Node) -> list[str]:
    return ["ctr", "--address", str(instance.containerd_socket(node)), "--namespace", NAMESPACE]


def _ctr_output(instance: Instance, node: Node, *arguments: str) -> str:
    said = subprocess.run(
        [*_ctr(instance, node), *arguments], capture_output=True, text=True, check=False
    )
    if said.returncode:
        raise ClusterError(f"containerd of {node.name}: {' '.join(said.stderr.split())}")
    return said.stdout


def _images(instance: Instance, node: Node) -> dict[str, str]:
    """Digest by name of the images that the node has."""
    lines = _ctr_output(instance, node, "images", "list").splitlines()[1:]
    return {row[0]: row[2] for row in map(str.split, lines)}


def _wait_for_containerd(instance: Instance, node: Node) -> None:
    def answers() -> bool:
        probe = [*_ctr(instance, node), "--connect-timeout", "2s", "version"]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0

    log = f"{instance.logs}/containerd-{node.name}.log"
    kubectl.wait(until=answers, what=f"containerd of {node.name} (log: {log})", seconds=30.0)

"""Images without a registry: built into the cache, imported into every node's containerd."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from . import build, kubectl, oci
from .components import PAUSE_IMAGE
from .errors import ClusterError
from .oci import Image
from .settings import NODES, Instance, Node, cache_root

NAMESPACE = "k8s.io"


def image_cache() -> Path:
    directory = cache_root() / "images"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def pause_image() -> Image:
    """The image that holds a pod's namespaces."""
    binary = build.binaries()["pause"]
    archive = image_cache() / f"{binary.parent.name}.tar"
    if archive.exists():
        return oci.read_image(archive)
    with tempfile.TemporaryDirectory(dir=image_cache()) as directory:
        root = Path(directory) / "root"
        root.mkdir()
        shutil.copy(binary, root / "pause")
        layer = Path(directory) / "layer.tar"
        oci.write_layer(root=root, to=layer)
        config = oci.Config(entrypoint=("/pause",), user="65535:65535")
        return oci.write_image(names=(PAUSE_IMAGE,), layers=[layer], config=config, to=archive)


def load(instance: Instance, wanted: list[Image]) -> int:
    """Import images into every node that lacks them; return how many imports that took."""
    imports: list[tuple[str, subprocess.Popen[str]]] = []
    for node in NODES:
        _wait_for_containerd(instance, node)
        present = _present(instance, node)
        for image in wanted:
            if all(present.get(name) == image.digest for name in image.names):
                continue
            process = subprocess.Popen(
                [*_ctr(instance, node), "images", "import", str(image.archive)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            imports.append((f"{image.names[0]} into {node.name}", process))
    failures = []
    for what, process in imports:
        _, complaint = process.communicate()
        if process.returncode:
            failures.append(f"importing {what}: {' '.join(complaint.split())}")
    if failures:
        raise ClusterError(failures[0])
    return len(imports)


def _ctr(instance: Instance, node: Node) -> list[str]:
    return ["ctr", "--address", str(instance.containerd_socket(node)), "--namespace", NAMESPACE]


def _present(instance: Instance, node: Node) -> dict[str, str]:
    """Digest by name of the images that the node has."""
    said = subprocess.run(
        [*_ctr(instance, node), "images", "list"], capture_output=True, text=True, check=False
    )
    if said.returncode:
        raise ClusterError(f"containerd of {node.name}: {' '.join(said.stderr.split())}")
    rows = (line.split() for line in said.stdout.splitlines()[1:])
    return {row[0]: row[2] for row in rows}


def _wait_for_containerd(instance: Instance, node: Node) -> None:
    def answers() -> bool:
        probe = [*_ctr(instance, node), "--connect-timeout", "2s", "version"]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0

    log = f"{instance.logs}/containerd-{node.name}.log"
    kubectl.wait(until=answers, what=f"containerd of {node.name} (log: {log})", seconds=30.0)

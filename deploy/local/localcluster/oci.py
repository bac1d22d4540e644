"""OCI images written with nothing but tar and JSON.

Layers are reproducible: sorted names, one time stamp, so that the same content has the same
digest on every machine.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ARCHITECTURE = "amd64"
EPOCH = 1_700_000_000
MEDIA_TYPE = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True)
class Layer:
    """One uncompressed layer on disk. `digest`: sha256:<hex>; `size` in bytes."""

    file: Path
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Config:
    """What a container of the image runs by default."""

    entrypoint: tuple[str, ...]
    user: str
    env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """An image under `names`, each with registry and tag."""

    names: tuple[str, ...]
    layers: tuple[Layer, ...]
    config: Config

    @property
    def digest(self) -> str:
        """The manifest's, as containerd reports it for the image's names."""
        return _digest(self._manifest())

    def write_archive(self, *, stream: IO[bytes], without: Set[str]) -> None:
        """Write an OCI archive, leaving out the layers that the reader has (digests)."""
        manifest = self._manifest()
        entry = _describe("manifest.v1+json", manifest)
        index = {
            "schemaVersion": 2,
            "manifests": [
                entry | {"annotations": {"io.containerd.image.name": name}} for name in self.names
            ],
        }
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as archive:
            _add(archive, name="oci-layout", content=_json({"imageLayoutVersion": "1.0.0"}))
            _add(archive, name="index.json", content=_json(index))
            for blob in (manifest, self._configuration()):
                _add(archive, name=_path(_digest(blob)), content=blob)
            for layer in self.layers:
                if layer.digest in without:
                    continue
                member = tarfile.TarInfo(_path(layer.digest))
                member.size = layer.size
                with layer.file.open("rb") as content:
                    archive.addfile(member, content)

    def _configuration(self) -> bytes:
        return _json(
            {
                "architecture": ARCHITECTURE,
                "os": "linux",
                "config": {
                    "Entrypoint": self.config.entrypoint,
                    "User": self.config.user,
                    "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", *self.config.env],
                    "WorkingDir": "/",
                },
                "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in self.layers]},
                "history": [{"created_by": "deploy/local"} for _ in self.layers],
            }
        )

    def _manifest(self) -> bytes:
        return _json(
            {
                "schemaVersion": 2,
                "mediaType": f"{MEDIA_TYPE}.manifest.v1+json",
                "config": _describe("config.v1+json", self._configuration()),
                "layers": [
                    {
                        "mediaType": f"{MEDIA_TYPE}.layer.v1.tar",
                        "digest": layer.digest,
                        "size": layer.size,
                    }
                    for layer in self.layers
                ],
            }
        )


def write_layer(*, root: Path, to: Path) -> Layer:
    """Write the files below `root`, all owned by root, as one layer."""

    def normalise(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = EPOCH
        return member

    unfinished = to.with_suffix(".new")
    with tarfile.open(unfinished, "w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            archive.add(
                path, arcname=str(path.relative_to(root)), recursive=False, filter=normalise
            )
    with unfinished.open("rb") as stream:
        digest = f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
    to.with_suffix(".digest").write_text(digest)
    unfinished.rename(to)
    return read_layer(to)


def read_layer(file: Path) -> Layer:
    """Describe a layer that `write_layer` wrote."""
    digest = file.with_suffix(".digest").read_text()
    return Layer(file=file, digest=digest, size=file.stat().st_size)


def _describe(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": f"{MEDIA_TYPE}.{kind}", "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _add(archive: tarfile.TarFile, *, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))

"""OCI image archives written with nothing but tar and JSON.

Archives are reproducible: sorted names, one time stamp, so that the same content has the
same digest on every machine.
"""

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

ARCHITECTURE = "amd64"
EPOCH = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Image:
    """An image archive. `digest` is its manifest's, as containerd reports it."""

    names: tuple[str, ...]
    archive: Path
    digest: str


@dataclass(frozen=True, slots=True)
class Config:
    """What a container of the image runs by default."""

    entrypoint: tuple[str, ...]
    user: str = ""
    env: tuple[str, ...] = ()
    working_directory: str = "/"


def write_layer(*, root: Path, to: Path) -> None:
    """Write the files below `root` as one uncompressed layer, owned by root."""

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
    unfinished.rename(to)


def write_image(
    *, names: tuple[str, ...], layers: list[Path], config: Config, to: Path
) -> Image:
    """Write an archive of the layers under `names` (with registry and tag) and describe it."""
    digests = [_sha256(layer) for layer in layers]
    settings = {
        "Entrypoint": list(config.entrypoint),
        "User": config.user,
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", *config.env],
        "WorkingDir": config.working_directory,
    }
    image = _json(
        {
            "architecture": ARCHITECTURE,
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": digests},
            "history": [{"created_by": "deploy/local"} for _ in layers],
        }
    )
    media = "application/vnd.oci.image"
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{media}.manifest.v1+json",
            "config": _describe(f"{media}.config.v1+json", image),
            "layers": [
                {
                    "mediaType": f"{media}.layer.v1.tar",
                    "digest": digest,
                    "size": layer.stat().st_size,
                }
                for digest, layer in zip(digests, layers, strict=True)
            ],
        }
    )
    entry = _describe(f"{media}.manifest.v1+json", manifest)
    index = _json(
        {
            "schemaVersion": 2,
            "manifests": [
                entry | {"annotations": {"io.containerd.image.name": name}} for name in names
            ],
        }
    )
    unfinished = to.with_suffix(".new")
    with tarfile.open(unfinished, "w", format=tarfile.GNU_FORMAT) as archive:
        _add(archive, name="oci-layout", content=_json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, name="index.json", content=index)
        for blob in (image, manifest):
            _add(archive, name=f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", content=blob)
        for digest, layer in zip(digests, layers, strict=True):
            _add_file(archive, name=f"blobs/sha256/{digest.removeprefix('sha256:')}", file=layer)
    unfinished.rename(to)
    return Image(names=names, archive=to, digest=str(entry["digest"]))


def read_image(archive: Path) -> Image:
    """Describe an archive that `write_image` wrote."""
    with tarfile.open(archive) as tar:
        stream = tar.extractfile("index.json")
        if stream is None:
            raise KeyError("index.json")
        manifests = json.load(stream)["manifests"]
    names = tuple(row["annotations"]["io.containerd.image.name"] for row in manifests)
    return Image(names=names, archive=archive, digest=manifests[0]["digest"])


def _describe(media_type: str, blob: bytes) -> dict[str, object]:
    digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
    return {"mediaType": media_type, "digest": digest, "size": len(blob)}


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def _add(archive: tarfile.TarFile, *, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mtime = EPOCH
    archive.addfile(member, io.BytesIO(content))


def _add_file(archive: tarfile.TarFile, *, name: str, file: Path) -> None:
    member = tarfile.TarInfo(name)
    member.size = file.stat().st_size
    member.mtime = EPOCH
    with open(file, "rb") as stream:
        archive.addfile(member, stream)

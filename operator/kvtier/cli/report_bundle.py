"""The file that a report is: a compressed archive, in which every text has been redacted."""

import io
import os
import tarfile
import tempfile
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from kvtier.cli import output
from kvtier.cli.errors import BadInput
from kvtier.cli.report_objects import Object, kept
from kvtier.redact import redact_foreign

_HEAD: Final = """\
Report about KVCacheTier {tier}, made by kvtier {version} on {at}.

No Secret was read for it. Tokens, keys, passwords and the values of most variables of containers
were taken out, as far as they can be told by their names and forms. Names of pods, nodes and
namespaces, addresses and the spec are in it: look through it before you give it away.

"""


@dataclass(slots=True)
class Bundle:
    """``directory`` is what the archive unpacks to; ``missing`` says what could not be read."""

    directory: str
    files: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add(self, name: str, text: str) -> None:
        """A text, redacted here and nowhere else."""
        self.files[name] = redact_foreign(text)

    def add_objects(self, name: str, objects: list[Object]) -> None:
        """As YAML documents."""
        if objects:
            self.add(name, output.documents([kept(each) for each in objects], "yaml"))

    def add_document(self, name: str, content: Any) -> None:
        self.add(name, output.document(content, "yaml"))

    def lacks(self, what: str, why: str) -> None:
        """Something that is not in it."""
        self.missing.append(" ".join(redact_foreign(f"{what}: {why}").split()))

    def write(self, path: Path, *, tier: str, version: str, at: datetime) -> int:
        """Write it, for its owner alone to read, and return its bytes. Raises BadInput.

        A file of that name is replaced, one behind a link too; a device or a pipe never is.
        """
        try:
            path = path.resolve()
        except (OSError, RuntimeError):
            raise BadInput(f"{path}: its links lead nowhere; name a file") from None
        if path.exists() and not path.is_file():
            what = "a directory" if path.is_dir() else "no regular file"
            raise BadInput(f"{path}: this is {what}; name a file that can be written")
        self.files = {"README.txt": self._readme(tier, version, at), **self.files}
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}; name a file that can be written") from None
        try:
            with os.fdopen(descriptor, "wb") as raw:
                self._archive(raw, at=at)
            size = Path(name).stat().st_size
            Path(name).replace(path)
        except BaseException as error:
            Path(name).unlink(missing_ok=True)
            if isinstance(error, OSError):
                fix = "name a file that can be written"
                raise BadInput(f"{path}: {error.strerror}; {fix}") from None
            raise
        return size

    def _archive(self, raw: Any, *, at: datetime) -> None:
        with tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for name, text in self.files.items():
                content = text.encode()
                member = tarfile.TarInfo(f"{self.directory}/{name}")
                member.size, member.mode, member.mtime = len(content), 0o600, int(at.timestamp())
                archive.addfile(member, io.BytesIO(content))

    def _readme(self, tier: str, version: str, at: datetime) -> str:
        text = _HEAD.format(tier=tier, version=version, at=at.strftime("%Y-%m-%dT%H:%M:%SZ"))
        text += "".join(f"  {name}\n" for name in self.files)
        text += "\nNot in it:\n" if self.missing else "\nNothing is missing.\n"
        return text + "".join(f"  {line}\n" for line in self.missing)

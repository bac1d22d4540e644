"""Certificates for tests of TLS, made with the openssl command line."""

import base64
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

_EXTENSIONS = """\
basicConstraints=critical,CA:{ca}
keyUsage=critical,digitalSignature
extendedKeyUsage={usage}
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both PEM."""

    certificate: str
    key: str

    def files(self) -> tuple[bytes, bytes]:
        return self.certificate.encode(), self.key.encode()


def _run(*arguments: str, where: Path) -> None:
    done = subprocess.run(
        ["openssl", *arguments], cwd=where, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _key(where: Path, kind: str) -> None:
    if kind == "ec":
        _run("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "key", where=where)
    else:
        _run("genrsa", "-out", "key", kind, where=where)


class Ca:
    """A certificate authority of a test."""

    def __init__(self, name: str = "test") -> None:
        with tempfile.TemporaryDirectory() as directory:
            where = Path(directory)
            _key(where, "ec")
            _run(
                *("req", "-x509", "-new", "-key", "key", "-out", "crt", "-days", "10"),
                *("-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
                where=where,
            )
            self._pair = Pair((where / "crt").read_text(), (where / "key").read_text())

    @property
    def pem(self) -> str:
        return self._pair.certificate

    def issue(
        self,
        *names: str,
        begin: timedelta = timedelta(minutes=-5),
        end: timedelta = timedelta(days=5),
        usage: str = "serverAuth",
        key: str = "ec",
        common_name: str = "rank",
        ca: bool = False,
    ) -> Pair:
        """A certificate for these DNS names; ``begin`` and ``end`` are from now. ``ca``: it is one
        of a CA itself."""
        with tempfile.TemporaryDirectory() as directory:
            where = Path(directory)
            _key(where, key)
            for file, text in (("ca.crt", self.pem), ("ca.key", self._pair.key)):
                (where / file).write_text(text)
            for file in ("index", "index.attr"):
                (where / file).touch()
            (where / "conf").write_text(
                "[ca]\ndefault_ca=x\n[x]\ndatabase=index\nrand_serial=yes\nnew_certs_dir=.\n"
                "default_md=sha256\npolicy=any\n[any]\ncommonName=optional\n"
            )
            extensions = _EXTENSIONS.format(usage=usage, ca=str(ca).upper())
            if names:
                extensions += f"subjectAltName={','.join(f'DNS:{name}' for name in names)}\n"
            (where / "ext").write_text(extensions)
            subject = f"/CN={common_name}"
            _run("req", "-new", "-key", "key", "-subj", subject, "-out", "csr", where=where)
            _run(
                *("ca", "-batch", "-notext", "-config", "conf", "-in", "csr", "-out", "crt"),
                *("-cert", "ca.crt", "-keyfile", "ca.key", "-extfile", "ext"),
                *("-startdate", _asn1(begin), "-enddate", _asn1(end)),
                where=where,
            )
            return Pair((where / "crt").read_text(), (where / "key").read_text())


def _asn1(offset: timedelta) -> str:
    return (datetime.now(UTC) + offset).strftime("%Y%m%d%H%M%SZ")


def secret(name: str, pair: Pair, *, ca: str, namespace: str = "") -> dict[str, Any]:
    """A kubernetes.io/tls Secret as cert-manager writes it."""
    files = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": ca}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": "kubernetes.io/tls",
        "data": {
            file: base64.b64encode(text.encode()).decode("ascii") for file, text in files.items()
        },
    }

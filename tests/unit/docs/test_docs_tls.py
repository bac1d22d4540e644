"""The commands of docs/tls.md make a certificate that kvtier takes."""

import base64
import re
import subprocess
from pathlib import Path

from kvtier.reconcile.certificate import KEYS, examine

PAGE = Path(__file__).parents[3] / "docs" / "tls.md"


def test_the_pages_commands_make_what_ranks_of_its_namespace_can_serve(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```sh\n(openssl .*?)^kubectl", PAGE.read_text("utf-8"), re.S | re.M)
    subprocess.run(["sh", "-ec", block], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    files = {key: (tmp_path / key).read_bytes() for key in KEYS}
    secret = {"data": {key: base64.b64encode(text).decode() for key, text in files.items()}}
    facts = examine(secret, name="kv-ranks-tls", hosts=["chat-r0.prefill.svc"])
    assert facts.problem is None
    elsewhere = examine(secret, name="kv-ranks-tls", hosts=["chat-r0.other.svc"])
    assert elsewhere.problem is not None

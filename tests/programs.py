"""Files of other projects, from their Go modules: fetched by the machine's Go, checked by a sum."""

import json
import os
import subprocess
from pathlib import Path

from apiserver_process import CannotStart


def go_module(module: str, *, checksum: str) -> Path:
    """The directory of ``module`` (path@version), from the module cache or the Go proxy.

    ``checksum`` is as go.sum has it. Raises CannotStart, in one line, when it cannot be fetched.
    """
    try:
        done = subprocess.run(
            ["go", "mod", "download", "-json", module],
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
            # The caller's flags and workspace must not change what is fetched.
            env={**os.environ, "GOFLAGS": "-mod=mod", "GOWORK": "off"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotStart(f"`go mod download {module}` failed: {error}") from error
    if done.returncode:
        said = " ".join(f"{done.stdout} {done.stderr}".split())
        raise CannotStart(f"`go mod download {module}` failed, see GOPROXY: {said}")
    found = json.loads(done.stdout)
    assert found["Sum"] == checksum, found
    return Path(found["Dir"])

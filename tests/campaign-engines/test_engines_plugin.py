"""The plugin's own suite on the real LMCache, so that its stand-in there cannot drift."""

import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "tests" / "unit" / "plugin"
SECONDS = 900.0
PROGRAM = """
import sys
# Behind LMCache's own packages: of this environment it is to get pytest and the servers alone.
sys.path.append({packages!r})
sys.path.insert(0, {source!r})
import lmcache.v1.distributed.l2_adapters.base as real
assert real.__file__, "the stand-in"
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default", {suite!r}]))
"""


def test_the_plugins_suite_holds_with_the_real_lmcache(program: list[str]) -> None:
    text = PROGRAM.format(
        packages=sysconfig.get_path("purelib"), source=str(ROOT / "operator"), suite=str(SUITE)
    )
    done = subprocess.run(
        [program[0], "-c", text],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    print(done.stdout.splitlines()[-1])
    # With the real one there is nothing to skip but what compares with the operator.
    assert "skipped" not in done.stdout.splitlines()[-1]

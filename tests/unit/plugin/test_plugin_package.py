"""The package as engines get it: alone, from an archive, with nothing of the operator."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from plugin_kit import keys

import kvtier_lmcache
from kvtier_lmcache.striped import holder

PACKAGE = Path(str(kvtier_lmcache.__file__)).parent
TOGETHER = {"__init__", "__main__"}


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path.name} imports relatively"
            found.add(node.module)
    return found


def test_it_imports_nothing_of_the_operator_and_nothing_later() -> None:
    for path in PACKAGE.glob("*.py"):
        outside = {name.partition(".")[0] for name in imported(path)} - sys.stdlib_module_names
        assert outside <= {"kvtier_lmcache", "lmcache", "glide_sync", "opentelemetry"}, path.name
        tree = ast.parse(path.read_text())
        late = [
            node
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        assert not late, f"{path.name} imports within a function"


def test_importing_it_imports_every_module_of_it() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - TOGETHER
    assert {f"kvtier_lmcache.{name}" for name in modules} <= sys.modules.keys()


@pytest.mark.parametrize("pure", ["breaker", "config", "hits", "jobs"])
def test_a_pure_module_asks_for_no_time_and_opens_no_connection(pure: str) -> None:
    impure = {"time", "socket", "random", "threading", "asyncio", "glide_sync", "lmcache"}
    assert not imported(PACKAGE / f"{pure}.py") & impure


def test_it_works_from_an_archive(tmp_path: Path) -> None:
    archive = tmp_path / "kvtier_lmcache.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in PACKAGE.glob("*.py"):
            packed.write(path, f"kvtier_lmcache/{path.name}")
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import lmcache_standin; lmcache_standin.install()\n"
        "import kvtier_lmcache\n"
        "assert kvtier_lmcache.__file__.startswith(sys.argv[1])\n"
        "print(kvtier_lmcache.StripedL2Adapter.__name__, [m for m in sys.modules if m == 'kvtier'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(archive), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "StripedL2Adapter []\n", done.stderr


def test_an_lmcache_that_was_not_tested_is_told_of_in_one_line() -> None:
    assert [kvtier_lmcache.untested(each) for each in kvtier_lmcache.TESTED_WITH] == [None]
    said = kvtier_lmcache.untested("0.6.0")
    assert said is not None
    assert "0.6.0" in said
    assert "0.5.6" in said
    assert "\n" not in said


def test_chunks_are_where_the_load_test_has_them() -> None:
    striping = pytest.importorskip("kvtier.loadtest.striping", reason="the operator's own")
    for ranks in (1, 3, 8):
        for each in keys("striped", 200):
            assert striping.holders(
                striping.Striping.HASH, index=0, chunk_hash=each.chunk_hash, ranks=ranks
            ) == (holder(each.chunk_hash, ranks),)
    assert holder(int.from_bytes(b"\xff\x00\x07", "big"), 5) == holder(b"\xff\x00\x07", 5)

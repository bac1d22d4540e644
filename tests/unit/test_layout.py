"""The map of the code, held to."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "operator" / "kvtier"
PURE = ("admission", "api", "breakeven", "generation", "modelconfig", "placement", "plan")
PURE += ("render",)
PURE += tuple(
    f"loadtest/{name}.py" for name in ("keys", "measures", "objects", "report", "striping")
)
PURE += tuple(
    f"webhook/{name}.py" for name in ("decision", "injection", "matching", "patch", "review")
)
PURE += ("trial/scale.py",)
PURE += tuple(
    f"cli/{name}.py"
    for name in (
        *("around", "changes", "colour", "generation_report", "next_steps"),
        *("plot", "probe_report", "status_list", "watch_changes"),
        *("screen", "simulate_plot", "simulate_report"),
        *("status_generations", "status_report", "trial_report"),
    )
)
PURE += tuple(f"engines/{name}.py" for name in ("endpoint", "exposition", "hits", "loads", "rates"))
PURE += ("limiter/tokens.py",)
PURE += tuple(f"probe/{name}.py" for name in ("config", "rates", "result"))
IMPURE_MODULES = {"aiohttp", "asyncio", "kopf", "kubernetes", "random", "secrets"}
IMPURE_MODULES |= {"socket", "time", "valkey"}
CLOCKS = {"now", "utcnow", "today"}
"""What asks datetime for the time, rather than computing with one that was handed in."""
IMPURE_PACKAGES = {"cluster", "reconcile", "controller", "process"}
MAX_LINES = 400


def python_files() -> list[Path]:
    roots = (ROOT / "operator", ROOT / "tests", ROOT / "deploy")
    return sorted(path for root in roots for path in root.rglob("*.py"))


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_python_file_is_longer_than_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("package", PURE)
def test_a_pure_package_imports_no_cluster_no_store_client_and_no_clock(package: str) -> None:
    found = SOURCE / package
    paths = [found] if found.suffix else sorted(found.rglob("*.py"))
    assert paths
    for path in paths:
        for module in imports(path):
            parts = module.split(".")
            assert parts[0] not in IMPURE_MODULES, f"{path.name} imports {module}"
            if parts[0] == "kvtier" and len(parts) > 1:
                assert parts[1] not in IMPURE_PACKAGES, f"{path.name} imports {module}"
        for node in ast.walk(ast.parse(path.read_text())):
            asks = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            assert not (asks and node.func.attr in CLOCKS), f"{path.name} asks for the time"


def test_the_source_root_does_not_shadow_the_standard_library() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    probe = "import operator, kvtier; print(operator.itemgetter)"
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

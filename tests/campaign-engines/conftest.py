"""What needs the real LMCache: an environment of its own, and a cluster for what needs ranks."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import vllm_engine as vllm
from engine_pod import Node
from lmcache_environment import CannotInstall, lmcache
from vllm_tier import PROMPTS

from livecluster.cluster import LiveCluster
from livecluster.fixtures import bring_up, installed, new_tier
from livecluster.installation import Installation

# A fixture that all suites on a cluster share.
__all__ = ["new_tier"]

TEST_SECONDS = 1800
"""LMCache imports torch each time it starts: a minute or more on a busy machine."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound each test without what the session brings up."""
    for item in items:
        if "tests/campaign-engines/" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))


@pytest.fixture(scope="session")
def program() -> list[str]:
    """The command of LMCache. Never skipped: it is installed, or every test fails with why."""
    try:
        return lmcache()
    except CannotInstall as error:
        why = str(error)
    pytest.fail(why, pytrace=False)


@pytest.fixture(scope="session")
def live() -> Iterator[LiveCluster]:
    yield from bring_up(name="engines", offset=8, watched=False)


@pytest.fixture(scope="session")
def kvtier(live: LiveCluster) -> Iterator[Installation]:
    yield from installed(live, values={"resources.requests.cpu": "500m"})


@pytest.fixture(scope="session")
def node(live: LiveCluster, program: list[str], tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node.of(live, python=program[0], home=tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="session")
def models(node: Node) -> Callable[[int], Path]:
    """Directories of models that differ in their weights alone, by seed."""

    def made(seed: int) -> Path:
        directory = node.home / f"weights-{seed}"
        if not directory.exists():
            script = str(Path(__file__).with_name("random_llama.py"))
            subprocess.run([node.python, script, str(directory), str(seed)], check=True)
        return directory

    return made


@pytest.fixture(scope="session")
def expected(node: Node, models: Callable[[int], Path]) -> list[tuple[int, ...]]:
    """What an engine answers to PROMPTS that has one worker and no connector."""
    with vllm.running(node, model=models(1), name="plain") as engine:
        return [engine.ask(each).tokens for each in PROMPTS]

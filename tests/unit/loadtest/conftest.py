"""Tiers on this machine: real Valkeys with the users that kvtier gives them, and their Secret."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvtier.api.load import parse_tier
from kvtier.generation.acl import acl_file
from kvtier.generation.record import new_record
from kvtier.redact import new_token
from kvtier.render.engine import engine_files

CHECKOUT = Path(__file__).parents[3]
sys.path[:0] = [str(CHECKOUT / "tests/unit" / folder) for folder in ("loadtest", "store", "cli")]

from local_tier import LocalTier, NewLocalTier  # noqa: E402
from valkey_servers import running_server  # noqa: E402


@pytest.fixture
def local_tier(tmp_path: Path) -> Iterator[NewLocalTier]:
    """Makes tiers from the small one; ``spec`` is merged into its parts."""
    small = yaml.safe_load((CHECKOUT / "tests/livecluster/tier.yaml").read_text())
    with ExitStack() as stack:
        made = 0

        def make(name: str = "chat", **spec: dict[str, Any]) -> LocalTier:
            nonlocal made
            made += 1
            document = {**small, "metadata": {"name": name, "namespace": "models"}}
            document["spec"] = {
                part: {**value, **spec.get(part, {})} for part, value in small["spec"].items()
            }
            tier = parse_tier(document)
            record = new_record(tier.spec, operator_token=new_token(), engine_token=new_token())
            home = tmp_path / str(made)
            servers = []
            for rank in range(tier.spec.pool.ranks):
                directory = home / str(rank)
                directory.mkdir(parents=True)
                text = acl_file(record, rank=rank)
                servers.append(
                    stack.enter_context(running_server("9.1", directory=directory, acl=text))
                )
            secret = home / "secret"
            secret.mkdir()
            for file, content in engine_files(tier, record).items():
                (secret / file).write_text(content)
            local = LocalTier(servers=servers, record=record, secret=secret)
            ranks = [
                {**rank, "host": "127.0.0.1", "port": server.port}
                for rank, server in zip(local.connection()["ranks"], servers, strict=True)
            ]
            # A loaded machine is slower than the links that the tier declares.
            local.change(ranks=ranks, requestTimeoutSeconds=2.0)
            return local

        yield make

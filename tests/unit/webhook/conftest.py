"""A CA, and the pair of files that a webhook serves."""

from pathlib import Path

import pytest

from certificates import Ca, Pair
from kvtier.webhook.metrics import WebhookMetrics


@pytest.fixture(scope="session")
def ca() -> Ca:
    return Ca("webhook")


@pytest.fixture(scope="session")
def first(ca: Ca) -> Pair:
    return ca.issue("localhost", common_name="first")


@pytest.fixture(scope="session")
def second(ca: Ca) -> Pair:
    return ca.issue("localhost", common_name="second", key="2048")


@pytest.fixture
def metrics() -> WebhookMetrics:
    return WebhookMetrics()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """An empty directory for tls.crt and tls.key."""
    return tmp_path

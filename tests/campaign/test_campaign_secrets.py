"""Secrets stay secret: the judgement on the whole campaign."""

import pytest

from livecluster.fixtures import NewTier, leaked
from livecluster.installation import Installation
from programs import CHECKOUT


def test_no_token_of_the_whole_campaign_is_anywhere_but_in_secrets(
    new_tier: NewTier, kvtier: Installation, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Runs last. Logs, events, status, metrics, arguments, descriptions, audit log, artefacts."""
    tier = new_tier("chat")
    tier.apply()
    tier.wait_ready()
    assert leaked(kvtier, tmp_path_factory.getbasetemp(), CHECKOUT / "docs") == []

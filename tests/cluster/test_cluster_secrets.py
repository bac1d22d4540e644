"""Secrets stay secret: the judgement on the whole session."""

import pytest

from livecluster.fixtures import NewTier, leaked
from livecluster.installation import Installation
from programs import CHECKOUT


# It looks through all that the session left, and a busy machine is slow at that.
@pytest.mark.timeout(600, func_only=True)
def test_no_token_of_the_whole_session_is_anywhere_but_in_secrets(
    new_tier: NewTier, kvtier: Installation, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Runs last. Logs, events, status, metrics, arguments, descriptions, audit log, artefacts."""
    tier = new_tier("chat")
    tier.apply()
    tier.wait_ready()
    assert leaked(kvtier, tmp_path_factory.getbasetemp(), CHECKOUT / "docs") == []

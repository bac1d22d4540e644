"""Flags of ``kvtier controller`` that are refused before anything runs."""

import pytest
from command_line import kvtier, one_line


@pytest.mark.parametrize("text", ["limiter", ":8080", "limiter:0", "limiter:x", "limiter:99999"])
def test_a_limiter_service_without_host_and_port_is_refused(text: str) -> None:
    done = kvtier("controller", "--limiter-service", text)
    assert done.returncode == 2
    assert one_line(done).startswith(f"--limiter-service: {text!r}")

"""Probes of ranks that speak TLS, and of those that should."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from probed_ranks import SETTINGS, NewRanks, Ranks, new_record_with_probe
from valkey_servers import BINARIES, running_server, with_tls

from certificates import Ca
from kvtier.generation.acl import acl_file
from kvtier.probe.worker import run_probe

RANKS = 2


@pytest.fixture(scope="module")
def ca() -> Ca:
    return Ca()


@pytest.fixture(params=[*BINARIES])
def tls_ranks(request: pytest.FixtureRequest, tmp_path: Path, ca: Ca) -> Iterator[Ranks]:
    """Their certificate is for ``localhost``."""
    pair = ca.issue("localhost")
    record = new_record_with_probe()
    with ExitStack() as stack:
        servers = []
        for rank in range(RANKS):
            home = tmp_path / str(rank)
            home.mkdir()
            files = {
                "tls-cert-file": (home / "tls.crt", pair.certificate),
                "tls-key-file": (home / "tls.key", pair.key),
                "tls-ca-cert-file": (home / "ca.crt", ca.pem),
            }
            for path, text in files.values():
                path.write_text(text)
            settings = {name: str(path) for name, (path, _) in files.items()}
            servers.append(
                stack.enter_context(
                    running_server(
                        request.param,
                        directory=home,
                        acl=acl_file(record, rank=rank),
                        settings=SETTINGS
                        | settings
                        | {"port": "0", "tls-port": "6379", "tls-auth-clients": "no"},
                        program=with_tls(request.param, "valkey-server"),
                    )
                )
            )
        yield Ranks(record=record, servers=servers, host="localhost", ca=ca.pem)


def test_ranks_that_speak_tls_are_measured(tls_ranks: Ranks) -> None:
    found = run_probe(tls_ranks.config(max_bytes=32 << 20))
    assert not found.troubles
    assert len(found.ranks) == RANKS
    assert all(each.bytes_per_second > 1e6 for each in found.ranks)
    assert found.bytes_moved > (32 << 20) / 2
    assert found.tls


def test_a_certificate_of_another_ca_is_refused(tls_ranks: Ranks) -> None:
    tls_ranks.ca = Ca("other").pem
    (told,) = run_probe(tls_ranks.config()).troubles
    assert told.ranks == (0, 1)
    assert "CERTIFICATE_VERIFY_FAILED" in told.text


def test_a_certificate_for_another_name_is_refused(tls_ranks: Ranks) -> None:
    tls_ranks.host = "127.0.0.1"
    (told,) = run_probe(tls_ranks.config()).troubles
    assert told.ranks == (0, 1)
    assert "certificate" in told.text.lower()


def test_a_rank_that_speaks_tls_is_no_rank_for_a_probe_without(tls_ranks: Ranks) -> None:
    tls_ranks.ca = None
    (told,) = run_probe(tls_ranks.config(setup_seconds=3.0)).troubles
    assert told.ranks == (0, 1)


def test_a_rank_without_tls_is_refused_by_a_probe_with(make_ranks: NewRanks, ca: Ca) -> None:
    plain = make_ranks(1)
    plain.ca = ca.pem
    (told,) = run_probe(plain.config(setup_seconds=3.0)).troubles
    assert told.ranks == (0,)

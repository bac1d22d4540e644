"""A rank that serves TLS alone, as the limiter asks it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from signals_kit import ACL
from valkey_servers import running_server, with_tls

from certificates import Ca
from kvtier.admission.signals import RankSignal
from kvtier.limiter.ranks import TIMEOUT, RankWatch
from kvtier.reconcile.clock import FakeClock
from kvtier.redact import new_token
from kvtier.store.client import connector
from kvtier.store.protocol import Address, Credentials, TlsName

TOKEN = new_token()
NAME = "llama-r1.prefill.svc"


class Login:
    """Asks for the rank at ``port`` under the name ``NAME``, and trusts ``ca`` alone."""

    def __init__(self, port: int, ca: Ca) -> None:
        self.port, self.ca = port, ca
        self.refusals = 0

    def get(self, rank: int) -> tuple[Address, Credentials] | None:
        address = Address("127.0.0.1", self.port, TlsName(NAME, self.ca.pem))
        return address, Credentials("limiter", TOKEN)

    def refused(self) -> None:
        self.refusals += 1


@pytest.fixture(scope="module")
def ca() -> Ca:
    return Ca()


@pytest.fixture
def port(ca: Ca, tmp_path: Path) -> Iterator[int]:
    pair = ca.issue(NAME)
    for name, text in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", ca.pem)):
        (tmp_path / name).write_text(text)
    settings = {
        "tls-port": "0",
        "tls-cert-file": str(tmp_path / "tls.crt"),
        "tls-key-file": str(tmp_path / "tls.key"),
        "tls-ca-cert-file": str(tmp_path / "ca.crt"),
        "tls-auth-clients": "no",
    }
    with running_server(
        "9.1",
        directory=tmp_path,
        acl=ACL.format(token=TOKEN),
        settings=settings,
        program=with_tls("9.1", "valkey-server"),
    ) as server:
        yield server.port


async def look(login: Login) -> RankSignal:
    watch = RankWatch(
        1,
        login=login,
        connect=connector(connect_seconds=TIMEOUT, reply_seconds=TIMEOUT),
        clock=FakeClock(),
        changed=lambda: None,
    )
    await watch.look()
    found = watch.signal()
    await watch._close()
    assert found is not None
    return found


async def test_a_rank_with_tls_tells_its_run(port: int, ca: Ca) -> None:
    login = Login(port, ca)
    found = await look(login)
    assert found.answers
    assert len(found.run_id) == 40
    assert login.refusals == 0


async def test_a_rank_of_another_ca_is_there_and_tells_nothing(port: int) -> None:
    login = Login(port, Ca("other"))
    found = await look(login)
    assert found.answers
    assert not found.run_id
    assert login.refusals == 1

"""How a limiter gets into ranks: by one Secret, which is read when it must be and not more."""

import asyncio
import base64

from signals_kit import tier

from kvtier.api.load import parse_tier
from kvtier.cluster.protocol import Unavailable
from kvtier.limiter.login import AGAIN, Login
from kvtier.reconcile.clock import FakeClock


class Secrets:
    def __init__(self) -> None:
        self.found: dict | None = None
        self.asked: list[tuple[str, str]] = []
        self.away = False

    def put(self, **data: str) -> None:
        names = {"ca": "ca.crt"}
        encoded = {n: base64.b64encode(text.encode()).decode() for n, text in data.items()}
        self.found = {"data": {names.get(n, n): text for n, text in encoded.items()}}

    async def get(self, namespace: str, name: str) -> dict | None:
        self.asked.append((namespace, name))
        if self.away:
            raise Unavailable(status=0, reason="Unreachable", message="away")
        return self.found


def login(secrets: Secrets, clock: FakeClock, *, tls: bool = False) -> Login:
    body = tier()
    if tls:
        body["spec"]["store"]["tls"] = {"secretName": "certificates"}
    spec = parse_tier(body).spec
    return Login("prefill", "llama", spec=spec, get=secrets.get, clock=clock)


async def settled(login: Login, rank: int = 1):
    login.get(rank)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return login.get(rank)


async def test_a_rank_is_at_its_service_and_takes_the_secret_s_token():
    secrets, clock = Secrets(), FakeClock()
    secrets.put(token="t")
    found = login(secrets, clock)
    assert found.get(1) is None
    address, credentials = await settled(found)
    assert (address.host, address.port) == ("llama-r1.prefill.svc", 6379)
    assert address.tls is None
    assert (credentials.username, credentials.password) == ("limiter", "t")
    await settled(found, 0)
    assert secrets.asked == [("prefill", "llama-limiter")]


async def test_a_secret_that_is_not_there_yet_is_read_again_after_a_while():
    secrets, clock = Secrets(), FakeClock()
    found = login(secrets, clock)
    assert await settled(found) is None
    secrets.put(token="t")
    assert await settled(found) is None
    await clock.advance(AGAIN)
    assert await settled(found) is not None
    assert len(secrets.asked) == 2


async def test_a_token_that_is_refused_is_read_again_and_the_old_one_serves_until_then():
    secrets, clock = Secrets(), FakeClock()
    secrets.put(token="old")
    found = login(secrets, clock)
    await settled(found)
    secrets.put(token="new")
    found.refused()
    _, credentials = await settled(found)
    assert credentials.password == "old"
    await clock.advance(AGAIN)
    _, credentials = await settled(found)
    assert credentials.password == "new"


async def test_an_api_server_that_is_away_keeps_nobody_from_asking_ranks():
    secrets, clock = Secrets(), FakeClock()
    secrets.put(token="t")
    found = login(secrets, clock)
    await settled(found)
    secrets.away = True
    found.refused()
    await clock.advance(AGAIN)
    assert await settled(found) is not None


async def test_with_tls_a_rank_must_prove_to_be_its_service_by_the_secret_s_ca():
    secrets, clock = Secrets(), FakeClock()
    secrets.put(token="t")
    found = login(secrets, clock, tls=True)
    assert await settled(found) is None
    secrets.put(token="t", ca="PEM")
    await clock.advance(AGAIN)
    address, _ = await settled(found)
    assert address.tls is not None
    assert (address.tls.name, address.tls.ca) == ("llama-r1.prefill.svc", "PEM")


async def test_a_secret_that_is_no_base64_is_none():
    secrets, clock = Secrets(), FakeClock()
    secrets.found = {"data": {"token": "%%%"}}
    assert await settled(login(secrets, clock)) is None


async def test_once_it_is_closed_nothing_is_read_any_more():
    secrets, clock = Secrets(), FakeClock()
    found = login(secrets, clock)
    await settled(found)
    found.close()
    await clock.advance(AGAIN)
    assert await settled(found) is None
    assert len(secrets.asked) == 1


async def test_an_error_that_nobody_thought_of_is_said_and_the_secret_read_again(caplog):
    secrets, clock = Secrets(), FakeClock()
    found = login(secrets, clock)
    found._get = None  # type: ignore[assignment]
    assert await settled(found) is None
    assert "prefill/llama: Secret of its limiter" in caplog.text
    found._get = secrets.get
    secrets.put(token="t")
    await clock.advance(AGAIN)
    assert await settled(found) is not None

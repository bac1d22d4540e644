"""Ranks that are down, deny, hang, lie or break off: one line for each, within the time."""

import socket
import time
from dataclasses import replace
from typing import Any

import pytest
from probed_ranks import SIZE, NewRanks, Ranks
from relays import answering, relay

from kvtier.generation.acl import probe_prefix
from kvtier.probe.result import ProbeResult, parse, to_json
from kvtier.probe.worker import run_probe
from kvtier.redact import new_token

SOON = 60.0
"""Seconds in which a probe of two ranks gives up, processes included, on a busy machine."""


ENDLESS = {"seconds": 30.0, "max_bytes": 1 << 40}
"""The other rank is not read to the end before something happens."""


def trouble(result: ProbeResult, *, rank: int = 1) -> str:
    """What is said of the rank, and that nothing is said of its neighbour."""
    assert [each.ranks for each in result.troubles] == [(rank,)], result.troubles
    assert result.link is None
    assert isinstance(parse(to_json(result)), ProbeResult)
    return result.troubles[0].text


def probe(ranks: Ranks, port: int, **changes: Any) -> ProbeResult:
    """A probe that is sent to ``port`` for its second rank."""
    config = ranks.config(ports=[ranks.servers[0].port, port])
    begun = time.monotonic()
    found = run_probe(replace(config, **changes))
    assert time.monotonic() - begun < SOON
    assert ranks.keys(0) == [], "the good rank is cleaned up too"
    return found


def test_a_rank_that_is_down(make_ranks: NewRanks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert "Connection refused" in trouble(probe(make_ranks(1), port))


def test_a_rank_without_an_address(make_ranks: NewRanks) -> None:
    ranks = make_ranks(1)
    config = ranks.config(ports=[ranks.servers[0].port, 1])
    nowhere = replace(config.ranks[1], host="no-such-rank.invalid")
    text = trouble(run_probe(replace(config, ranks=(config.ranks[0], nowhere))))
    assert text.startswith("no-such-rank.invalid: ")


def test_a_rank_that_refuses_the_token(ranks: Ranks) -> None:
    wrong = new_token()
    found = run_probe(ranks.config(password=wrong))
    (told,) = found.troubles
    assert told.ranks == (0, 1)
    assert told.text.startswith("WRONGPASS")
    assert wrong not in to_json(found)


def test_an_address_that_leads_to_another_rank(make_ranks: NewRanks) -> None:
    ranks = make_ranks(2)
    first = ranks.servers[0].port
    # The token is right there too.
    found = run_probe(ranks.config(ports=[first, first]))
    assert trouble(found).startswith("NOPERM")
    assert ranks.keys(0) == ranks.keys(1) == []


def test_a_rank_that_accepts_and_never_answers(make_ranks: NewRanks) -> None:
    ranks = make_ranks(1)
    with socket.create_server(("127.0.0.1", 0), backlog=16) as silent:
        text = trouble(probe(ranks, silent.getsockname()[1], setup_seconds=3.0))
    assert "no answer within" in text


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "form that is not known|invalid literal|PING"),
        (b"-LOADING the dataset\r\n", "LOADING"),
        (b"+OK\r\n", "PING|invalid literal"),
        (b"+PONG\r\n", "invalid literal"),
        (b"$99999999999999\r\n", "PING|more than"),
    ],
)
def test_a_server_that_is_no_valkey(answer: bytes, says: str, make_ranks: NewRanks) -> None:
    ranks = make_ranks(1)
    with answering(answer) as port:
        text = trouble(probe(ranks, port))
    assert any(word in text for word in says.split("|")), text


def test_a_server_that_sends_without_end_and_no_line(make_ranks: NewRanks) -> None:
    ranks = make_ranks(1)
    with answering(b"x" * 65536, again=True) as port:
        assert "no Valkey" in trouble(probe(ranks, port))


def test_bytes_that_were_changed_on_the_way(make_ranks: NewRanks) -> None:
    ranks = make_ranks(2)

    def corrupt(data: bytes, seen: int) -> bytes:
        # Well within the first value, which comes after PINGs and INFO.
        place = 40_000 - seen
        if 0 <= place < len(data):
            return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        return data

    with relay(ranks.servers[1].port, alter=corrupt) as bad:
        text = trouble(probe(ranks, bad.port))
    assert "other bytes than were stored" in text
    assert ranks.keys(1) == []


def test_a_rank_that_breaks_off_while_it_is_read(make_ranks: NewRanks) -> None:
    ranks = make_ranks(2)

    def break_off(data: bytes, seen: int) -> bytes | None:
        return data if seen < 40 * SIZE else None

    with relay(ranks.servers[1].port, alter=break_off) as bad:
        text = trouble(probe(ranks, bad.port, connections=1, **ENDLESS))
    assert "closed the connection" in text or "reset" in text.lower()


def test_a_value_that_is_gone_while_it_is_read(make_ranks: NewRanks) -> None:
    ranks = make_ranks(2)

    def deny(data: bytes, seen: int) -> bytes:
        return data if seen < 40 * SIZE else data.replace(b"$%d\r\n" % SIZE, b"$-1\r\n")

    with relay(ranks.servers[1].port, alter=deny) as bad:
        text = trouble(probe(ranks, bad.port, connections=1, **ENDLESS))
    assert text == "the value is gone while it was read"


def test_a_rank_that_goes_silent_while_it_is_read(make_ranks: NewRanks) -> None:
    ranks = make_ranks(2)

    def hang(data: bytes, seen: int) -> bytes:
        if seen > 4 * SIZE + 20_000:
            time.sleep(5)
        return data

    with relay(ranks.servers[1].port, alter=hang) as bad:
        text = trouble(probe(ranks, bad.port, connections=1, seconds=2.0))
    # At all, or after the first of its bytes.
    assert "not one byte" in text


def test_a_rank_that_has_no_room_and_may_not_evict(make_ranks: NewRanks) -> None:
    ranks = make_ranks(1, **{"maxmemory": "1kb", "maxmemory-policy": "noeviction"})
    assert trouble(run_probe(ranks.config()), rank=0).startswith("OOM")


def test_a_rank_that_is_slow_in_setting_up(make_ranks: NewRanks) -> None:
    ranks = make_ranks(2)

    def slowly(data: bytes, _: int) -> bytes:
        time.sleep(0.15)
        return data

    with relay(ranks.servers[1].port, alter=slowly) as slow:
        config = {"value_bytes": 8 << 20, "max_bytes": 1 << 30, "setup_seconds": 4.0}
        assert "within" in trouble(probe(ranks, slow.port, **config))


def test_the_prefix_is_the_rank_s_own() -> None:
    assert probe_prefix(1) != probe_prefix(11)

"""What the plugin is given: a line that names the field and the fix for what is nonsense."""

from pathlib import Path
from typing import Any

import pytest

from kvtier_lmcache.config import Credentials, parse

GOOD: dict[str, Any] = {
    "striping": "Hash",
    "ranks": [{"host": "chat-r0.models.svc", "port": 6379, "prefix": "kvt-0123456789ab-r0"}],
    "credentials": "/kvtier/token",
    "workers": 8,
    "request_timeout": 0.25,
    "connection_timeout": 1.0,
    "tls": True,
    "ca": "/kvtier/ca.crt",
    "minimum_hit_chunks": 90,
}
RANK = GOOD["ranks"][0]


def test_what_the_secret_has_is_taken() -> None:
    config = parse(GOOD)
    assert (config.striping, config.workers, config.minimum_hit_chunks) == ("Hash", 8, 90)
    assert (config.request_timeout, config.connection_timeout) == (0.25, 1.0)
    assert (config.tls, config.ca) == (True, Path("/kvtier/ca.crt"))
    assert str(config.ranks[0]) == "chat-r0.models.svc:6379"


def test_without_tls_no_ca_is_read() -> None:
    assert parse(GOOD | {"tls": False}).ca is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"wrokers": 8}, "wrokers: no such field"),
        ({"striping": "ChunkModulo"}, "striping: must be Hash or Shard"),
        ({"ranks": []}, "ranks: must be a list"),
        ({"ranks": ["r0:6379"]}, r"ranks\[0\]: must be an object of host, port and prefix"),
        ({"ranks": [RANK | {"port": 0}]}, r"ranks\[0\].port: must be a whole number from 1"),
        ({"ranks": [RANK | {"host": " "}]}, r"ranks\[0\].host: must be a text"),
        ({"ranks": [RANK | {"prefix": "a@b"}]}, r"ranks\[0\].prefix: must not contain '@'"),
        ({"ranks": [RANK, RANK]}, "ranks: two are the same"),
        ({"credentials": ""}, "credentials: must be a text"),
        ({"workers": 0}, "workers: must be a whole number from 1 to 256"),
        ({"workers": True}, "workers: must be a whole number"),
        ({"workers": 8.0}, "workers: must be a whole number"),
        ({"request_timeout": 0}, "request_timeout: must be seconds from 0.001"),
        ({"request_timeout": float("nan")}, "request_timeout: must be seconds"),
        ({"connection_timeout": "1s"}, "connection_timeout: must be seconds"),
        ({"tls": "yes"}, "tls: must be true or false"),
        ({"ca": 5}, "ca: must be a text"),
        ({"minimum_hit_chunks": -1}, "minimum_hit_chunks: must be a whole number from 0"),
    ],
)
def test_nonsense_is_one_line_that_names_the_field(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}") as raised:
        parse(GOOD | wrong)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("given", [None, [], "text"])
def test_parameters_that_are_no_object_are_refused(given: object) -> None:
    with pytest.raises(ValueError, match="must be an object"):
        parse(given)


@pytest.mark.parametrize(
    ("text", "user", "password"),
    [("t0k", "t0k", "t0k"), ("t0k\n", "t0k", "t0k"), ("u\np\n", "u", "p")],
)
def test_credentials_are_a_token_or_a_user_and_a_password(
    tmp_path: Path, text: str, user: str, password: str
) -> None:
    (tmp_path / "token").write_text(text)
    config = parse(GOOD | {"credentials": str(tmp_path / "token")})
    assert config.read_credentials() == Credentials(user, password)
    assert "t0k" not in repr(Credentials("t0k", "t0k"))

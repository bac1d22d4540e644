"""Equal settings compare equal, however a server spells them."""

import pytest

from kvtier.store.config import canonical, differing, same


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("1gb", "1073741824"),
        ("1g", "1000000000"),
        ("512MB", "536870912"),
        ("64k", "64000"),
        ("64kb", "65536"),
        ("10b", "10"),
        ("YES", "yes"),
        ("010%", "10%"),
        ("-2", "-2"),
        ("", ""),
        ("  a   b ", "a b"),
    ],
)
def test_two_spellings_of_a_value_are_the_same(written: str, read: str) -> None:
    assert canonical(written) == read
    assert same("maxmemory", written, read)


@pytest.mark.parametrize(("a", "b"), [("1gb", "1g"), ("10%", "10"), ("yes", "no"), ("", "0")])
def test_different_values_stay_different(a: str, b: str) -> None:
    assert not same("maxmemory", a, b)


READ = "normal 268435456 134217728 30 slave 268435456 67108864 60 pubsub 33554432 8388608 60"


@pytest.mark.parametrize(
    ("want", "equal"),
    [
        ("normal 256mb 128mb 30", True),
        ("replica 256mb 64mb 60", True),
        ("pubsub 32mb 8mb 60 normal 256mb 128mb 30", True),
        ("normal 256mb 128mb 31", False),
        ("replica 128mb 64mb 60", False),
    ],
)
def test_output_buffer_limits_compare_by_class(want: str, equal: bool) -> None:
    assert same("client-output-buffer-limit", want, READ) is equal


def test_an_output_buffer_limit_of_three_words_is_an_error() -> None:
    with pytest.raises(ValueError, match="<class>"):
        same("client-output-buffer-limit", "normal 1 2", READ)


def test_only_what_differs_is_named_with_both_values() -> None:
    assert differing(
        {"maxmemory": "1gb", "maxclients": "10", "io-threads": "2"},
        {"maxmemory": "1073741824", "maxclients": "20", "other": "1"},
    ) == {"maxclients": ("10", "20"), "io-threads": ("2", None)}

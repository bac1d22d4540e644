"""Credentials are taken out of text wherever they stand in it."""

from kvtier.generation.record import TOKEN_PATTERN
from kvtier.redact import REDACTED, new_token, redact


def test_a_token_is_found_by_its_form_alone() -> None:
    token = new_token()
    assert redact(f"User {token} has no permissions") == f"User {REDACTED} has no permissions"


def test_a_secret_of_another_form_is_taken_out_when_it_is_known() -> None:
    assert redact("'>hunter2 long': error", "hunter2", "hunter2 long", "") == (
        f"'>{REDACTED}': error"
    )


def test_text_without_a_secret_stays_as_it_is() -> None:
    text = "sha256:" + "0a" * 32
    assert redact(text) == text


def test_a_token_fits_an_acl_file_and_is_never_the_same_twice() -> None:
    assert TOKEN_PATTERN.fullmatch(new_token())
    assert new_token() != new_token()

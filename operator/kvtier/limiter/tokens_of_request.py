"""Pure: how many prompt tokens a request counts for, by what the gateway tells of it."""

from typing import Final

BYTES_PER_TOKEN: Final = 4
"""A prompt's text has some four bytes a token, and its JSON more."""
MOST_TOKENS: Final = 2.0**20
"""A request counts for no more: no model reads more, and a length is told before a byte of the body
is there. What comes at the peak is remembered for hours, and holds limits up."""
MOST_MEANS: Final = 16
"""Mean prompts that a statement without a length may come to."""
WITHOUT_PROMPT: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_LONGEST = 15
"""Digits. What has more is no size."""


def tokens_of(*, method: str, length: int | None, stated: str | None, mean: float) -> float:
    """Prompt tokens.

    ``length`` is the body's in bytes by the gateway, None where it does not know, as with chunked
    requests; ``stated`` is what the client says. A statement counts from a fourth of the length,
    below which nobody gets, to the length: no token is shorter than a byte. Without a length a
    request counts for ``mean``, or for what it states if that is more, up to 16 of these. A GET
    that tells neither has no prompt, and counts for nothing. Nothing counts for more than 2**20.
    """
    claim = None if stated is None else number_of(stated)
    if length is None:
        if claim is None:
            return 0.0 if method in WITHOUT_PROMPT else mean
        return min(max(mean, min(float(claim), MOST_MEANS * mean)), MOST_TOKENS)
    least = length / BYTES_PER_TOKEN
    if claim is not None:
        least = min(max(least, float(claim)), max(least, float(length)))
    return min(least, MOST_TOKENS)


def number_of(text: str | None) -> int | None:
    """A number of bytes or tokens, as gateways and clients write it: "123", or "b=123". None for
    what is no number, as the "b=" of a chunked request."""
    if not text:
        return None
    digits = text.removeprefix("b=")
    if digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST:
        return int(digits)
    return None

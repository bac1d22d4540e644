"""The one place where credentials are made and where they are taken out of text.

Tokens carry a prefix of their own, so that one pattern finds them wherever they turn up: an ACL
user's *name* is its token too, and servers put user names into their error messages.
"""

import re
import secrets

TOKEN_PREFIX = "kvtt-"
REDACTED = "<redacted>"

_TOKEN = re.compile(rf"{TOKEN_PREFIX}[0-9a-f]+")


def new_token() -> str:
    """A random token of 192 bits, usable as an ACL user's name and as its password."""
    return TOKEN_PREFIX + secrets.token_hex(24)


def redact(text: str, *known_secrets: str) -> str:
    """``text`` without any token, and without ``known_secrets`` (empty ones are ignored)."""
    for secret in sorted(filter(None, known_secrets), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return _TOKEN.sub(REDACTED, text)

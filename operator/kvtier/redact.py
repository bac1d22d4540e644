"""The one place where credentials are made and where they are taken out of text.

Tokens carry a prefix of their own, so that one pattern finds them wherever they turn up: an ACL
user's *name* is its token too, and servers put user names into their error messages.

``redact`` is for what kvtier says itself, where only its own tokens can be. ``redact_foreign`` is
for texts of others (logs, objects of a namespace), where anybody's credentials can be, and would
rather take out too much.
"""

import base64
import binascii
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

TOKEN_PREFIX = "kvtt-"
TOKEN_BYTES: Final = 24
REDACTED = "<redacted>"

_TOKEN = re.compile(rf"{TOKEN_PREFIX}[0-9a-f]+")


def new_token() -> str:
    """A random token of 192 bits, usable as an ACL user's name and as its password."""
    return TOKEN_PREFIX + secrets.token_hex(TOKEN_BYTES)


def redact(text: str, *known_secrets: str) -> str:
    """``text`` without any token, and without ``known_secrets`` (empty ones are ignored)."""
    for secret in sorted(filter(None, known_secrets), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return _TOKEN.sub(REDACTED, text)


_BARE_TOKEN = re.compile(rf"(?<![0-9A-Za-z])[0-9a-f]{{{2 * TOKEN_BYTES}}}(?![0-9A-Za-z])")
"""A token without its prefix. Commits have 40 digits and digests 64, so that those stay."""
_KEY_BLOCK = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.S
)
_KEY_END = re.compile(r"[\w+/=\s\\]{0,8000}-----END [A-Z0-9 ]*PRIVATE KEY-----")
"""What is left of one whose beginning a log does not have any more."""
_KNOWN_FORMS = re.compile(
    r"(?<![0-9A-Za-z])(?:hf_[0-9A-Za-z]{16,}|sk-[0-9A-Za-z_-]{16,}|gh[pousr]_[0-9A-Za-z]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}"
    r"|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
)
"""Tokens of others that can be told by their looks: model hubs, forges, clouds, JWTs."""
_IN_URL = re.compile(r"(?<=://)[^\s/@:'\"]*:[^\s/@'\"]*(?=@)")
_SCHEME = re.compile(r"(?i)\b(bearer|basic)\s+(?!<)[\w.~+/=-]{8,}")
_WORD: Final = (
    r"(?:password|passwd|passphrase|secret|token|credentials?|authorization|requirepass|masterauth"
    r"|(?:api|access|private|secret|account|encryption|auth|signing)[-_.]?key)"
)
_NAMED = re.compile(
    rf"(?i)(?<![0-9a-z])((?:[0-9a-z]+[-_.])*{_WORD})(\\?[\"']?(?:[ \t]*[:=][ \t]*|[ \t]+)\\?[\"']?)"
    r"(?![<{\[])([^\s\"'{}\[\],\\]+)"
)
"""A name that tells of a secret, and what stands behind it: ``--api-key x``, ``TOKEN=x``."""
_SECRET_NAME = re.compile(rf"(?i)(?:^|[-_.]|(?<=[a-z])(?=[A-Z])){_WORD}$")
_PLAIN_WORD = re.compile(r"[a-z]{1,12}[.,;:)]?")
_BASE64 = re.compile(r"[\w+/-]{16,}(?:[ \t]*(?:\\+n|\n)[ \t]*[\w+/-]{16,})*={0,2}", re.A)
_HARMLESS = re.compile(r"[a-z0-9-]{1,63}(?:/[a-z0-9.-]+)*|[A-Z][a-z]+(?:[A-Z][a-z]+)*|[0-9a-f]+")
_DEPTH: Final = 3
"""Secret data is base64, and whoever logs an object may have encoded it once more."""


def redact_foreign(text: str, *known_secrets: str) -> str:
    """``text`` without what may be a credential, also where it is hidden in base64.

    Those of kvtier, private keys, tokens of well-known forms, passwords in URLs, and values behind
    a name such as ``password`` or ``API_KEY``. What has neither a form nor a name is not found.
    """
    text = redact(text, *known_secrets)
    text = _KEY_BLOCK.sub(REDACTED, text)
    text = _KEY_END.sub(REDACTED, text)
    text = _BASE64.sub(_without_base64, text)
    text = _BARE_TOKEN.sub(REDACTED, text)
    text = _KNOWN_FORMS.sub(REDACTED, text)
    text = _IN_URL.sub(REDACTED, text)
    text = _SCHEME.sub(rf"\1 {REDACTED}", text)
    return _NAMED.sub(_without_value, text)


def is_secret_name(name: str) -> bool:
    """Whether a variable or a field of this name would hold a credential."""
    return bool(_SECRET_NAME.search(name))


def redact_tree(value: Any) -> Any:
    """A document with every text in it redacted, and with no value under a secret's name."""
    if isinstance(value, str):
        return redact_foreign(value)
    if isinstance(value, Mapping):
        return {
            redact_foreign(str(name)): REDACTED
            if isinstance(inner, str) and is_secret_name(str(name))
            else redact_tree(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return _redacted_list(list(value))
    return value


def _redacted_list(items: list[Any]) -> list[Any]:
    """Of arguments, the one after ``--api-key`` is its value."""
    found, secret = [], False
    for item in items:
        found.append(REDACTED if secret and isinstance(item, str) else redact_tree(item))
        secret = isinstance(item, str) and item.startswith("-") and is_secret_name(item)
    return found


def _without_value(match: re.Match[str]) -> str:
    name, between, value = match.groups()
    # "no token was found": prose, not a value. An option is followed by one in any case.
    prose = not between.strip(" \t") and not _before_is_dash(match)
    if prose and (_PLAIN_WORD.fullmatch(value) or not re.search(r"[0-9]", value)):
        return match[0]
    return f"{name}{between}{REDACTED}"


def _before_is_dash(match: re.Match[str]) -> bool:
    return match.start() > 0 and match.string[match.start() - 1] == "-"


def _without_base64(match: re.Match[str]) -> str:
    return REDACTED if _hides(match[0], depth=_DEPTH) else match[0]


def _hides(run: str, *, depth: int) -> bool:
    """Whether this base64 holds a credential, wherever in it the encoding of one begins."""
    joined = re.sub(r"\\+n|\s|=", "", run).replace("-", "+").replace("_", "/")
    if "\n" not in run and _HARMLESS.fullmatch(run):
        return False
    for skipped in range(4):
        part = joined[skipped:]
        try:
            raw = base64.b64decode(part[: len(part) // 4 * 4])
        except binascii.Error:
            continue
        if skipped == 0 and _is_der(raw, size=len(part) * 3 // 4):
            return True
        text = raw.decode("latin-1")
        if _TOKEN.search(text) or _BARE_TOKEN.search(text) or "PRIVATE KEY--" in text:
            return True
        if depth and any(
            _hides(inner[0], depth=depth - 1) for inner in _BASE64.finditer(text) if len(text) > 40
        ):
            return True
    return False


def _is_der(raw: bytes, *, size: int) -> bool:
    """One whole ASN.1 SEQUENCE, as the body of a key or of a certificate is."""
    if len(raw) < 30 or raw[0] != 0x30:
        return False
    if raw[1] < 0x80:
        length = 2 + raw[1]
    else:
        count = raw[1] & 0x7F
        if count > 3:
            return False
        length = 2 + count + int.from_bytes(raw[2 : 2 + count], "big")
    return abs(length - size) <= 3

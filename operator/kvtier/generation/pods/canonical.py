"""One text for each value, however it is written."""

import hashlib
import json
from typing import Any, Final

from kvtier.generation.identity import canonical_json

LONGEST: Final = 512
"""Characters of a setting; of a longer one the hash is kept."""
DTYPES: Final = {
    "half": "float16",
    "float16": "float16",
    "fp16": "float16",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float": "float32",
    "float32": "float32",
    "fp32": "float32",
}
KV_DTYPES: Final = DTYPES | {
    "fp8": "fp8_e4m3",
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
}
"""What engines accept -> names of ``api.model.KVCacheDtype``. ``fp8`` is e4m3 in both engines."""
_MULTIPLES: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_MULTIPLES: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class NotCanonical(ValueError):
    """The text is no value of its kind."""


def decoded(value: str) -> Any:
    """JSON with whole numbers as integers. Raises NotCanonical."""
    try:
        return _whole(json.loads(value))
    except (ValueError, RecursionError, OverflowError):
        raise NotCanonical from None


def canonical(kind: str, values: list[str]) -> str:
    """The one text of what a flag of this kind says. Raises NotCanonical."""
    value = values[-1].strip() if values else ""
    if kind == "list":
        return bounded(canonical_json(sorted(values)))
    if kind == "adapters":
        return bounded(canonical_json(sorted(_adapter(each) for each in values)))
    if kind == "json":
        return bounded(_json(value))
    if kind == "number":
        return _json(value)
    if kind == "size":
        return _size(value)
    if kind == "int":
        return str(whole(value))
    if kind == "dtype":
        return DTYPES.get(value.lower(), value.lower())
    if kind == "switch":
        return "false" if value.lower() in ("false", "0", "no", "") else "true"
    if kind == "word":
        return bounded(value.lower().replace("-", "_"))
    return bounded(value)


def whole(value: str) -> int:
    """A positive number. Raises NotCanonical."""
    plain = value.strip()
    if not (plain.isascii() and plain.isdigit() and 0 < len(plain) <= 9):
        raise NotCanonical
    return int(plain)


def bounded(value: str) -> str:
    """``value``, or the hash of a long one."""
    if len(value) <= LONGEST:
        return value
    return f"sha256:{hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _json(value: str) -> str:
    try:
        return canonical_json(decoded(value))
    except (ValueError, RecursionError):
        raise NotCanonical from None


def _size(value: str) -> str:
    """vLLM's 32k = 32000, 32K = 32768; -1 and auto let it choose."""
    if value in ("-1", "auto"):
        return "auto"
    if value[-1:] in _BINARY_MULTIPLES:
        return str(whole(value[:-1]) * _BINARY_MULTIPLES[value[-1]])
    if value[-1:] in _MULTIPLES:
        try:
            return str(int(float(value[:-1]) * _MULTIPLES[value[-1]]))
        except (ValueError, OverflowError):
            raise NotCanonical from None
    return str(whole(value))


def _adapter(value: str) -> str:
    """``name=path``, or JSON with both."""
    if not value.lstrip().startswith("{"):
        return value
    found = decoded(value)
    name = found.get("name") or found.get("lora_name")
    path = found.get("path") or found.get("lora_path")
    if not (isinstance(name, str) and isinstance(path, str)):
        raise NotCanonical
    return f"{name}={path}"


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return value

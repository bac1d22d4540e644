"""kvtier's plugin for LMCache: a tier's ranks as an L2 adapter, and as an in-process connector.

Everything is imported here and now: the package may come from an archive that is replaced under a
running process, which could import nothing more from it then.
"""

from importlib.metadata import PackageNotFoundError, version

from lmcache.logging import init_logger

__all__ = ["TESTED_WITH", "StripedConnectorAdapter", "StripedL2Adapter"]

TESTED_WITH = ("0.5.6",)

_missing = []
# An LMCache may have one of both halves alone: then it asks for the class of that one.
try:
    from kvtier_lmcache.l2_adapter import StripedL2Adapter
except ImportError as error:
    _missing.append(error)
try:
    from kvtier_lmcache.connector import StripedConnectorAdapter
except ImportError as error:
    _missing.append(error)
if len(_missing) > 1:
    raise _missing[0]
for each in _missing:
    init_logger(__name__).warning("half of kvtier's plugin cannot be used: %s", each)


def untested(found: str) -> str | None:
    """What to say of an LMCache of this version; None if it is one that was tested."""
    if found in TESTED_WITH:
        return None
    tested = ", ".join(TESTED_WITH)
    return f"LMCache {found}: kvtier's plugin was tested with {tested} and may not work with it"


def _installed() -> str:
    try:
        return version("lmcache")
    except PackageNotFoundError:
        return "unknown"


if warning := untested(_installed()):
    init_logger(__name__).warning(warning)

"""Flags that several commands have."""

from kvtier.cli.errors import BadInput

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning")


def address(flag: str, text: str) -> str:
    """``text`` if it is HOST:PORT. Raises BadInput."""
    _, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadInput(f"{flag}: {text!r} is not HOST:PORT; write one such as 0.0.0.0:8080")
    return text

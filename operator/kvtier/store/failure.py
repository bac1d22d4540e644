"""How a rank fails a request of a client that moves values."""

from enum import StrEnum


class Kind(StrEnum):
    """How a rank failed a request. ``DENIED``: by its access rules or a wrong password."""

    REFUSED = "refused"
    TIMEOUT = "timeout"
    DENIED = "denied"
    RESET = "reset"
    OTHER = "other"


class Failed(Exception):
    """A request that got no good answer; ``kind`` says how, the text why, without any secret."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Reply(Failed):
    """The server said no. The connection is still good."""

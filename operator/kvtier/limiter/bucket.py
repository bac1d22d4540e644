"""Pure: a bucket of prompt tokens, and an estimate of those that wait.

Tokens and tokens/s; ``now`` is in seconds of one clock. Time that goes back changes nothing, and
time that leaps ahead fills a bucket once.
"""

from typing import Final

BURST_SECONDS: Final = 0.3
"""A bucket holds so many seconds of its rate, or one prompt if that is more."""
DEBT_SECONDS: Final = 5.0
"""The most that one request is charged beyond a full bucket, in seconds of the rate. It shuts the
bucket for as long. A body of pictures in base64 looks like a million tokens and is a thousand."""


class Bucket:
    """Lets through ``rate`` tokens/s on average, whatever the sizes are.

    A request passes while there is anything in the bucket, and is charged in full: the bucket may
    owe. So a large prompt has the chance of a small one, and none is refused for ever. Between two
    moments it lets through at most ``rate`` x seconds + ``burst`` + one request, and a request is
    charged at most ``burst`` + 5 s of the rate.
    """

    __slots__ = ("_at", "burst", "level", "rate")

    def __init__(self, *, rate: float, prompt: float, now: float) -> None:
        """It begins empty: each tightening would let one more burst through otherwise."""
        self.level = 0.0
        self._at = now
        self._size(rate, prompt)

    def change(self, *, rate: float, prompt: float, now: float) -> None:
        """From ``now`` on. What is in it stays, as far as the new rate holds as much or owes it."""
        self._fill(now)
        self._size(rate, prompt)
        self.level = max(min(self.level, self.burst), -DEBT_SECONDS * self.rate)

    def passes(self, now: float) -> bool:
        """Whether the next request passes. It changes nothing."""
        # What _fill does; a call costs as much as the sum.
        passed = now - self._at
        if passed > 0:
            level = self.level + self.rate * passed
            self.level = level if level < self.burst else self.burst
        self._at = now
        return self.level > 0

    def charge(self, tokens: float) -> None:
        """Take ``tokens`` of a request that passed."""
        self.level -= min(tokens, self.burst + DEBT_SECONDS * self.rate)

    def wait(self) -> float:
        """Seconds until the next request passes, as of the last look."""
        return max(0.0, -self.level / self.rate)

    def _size(self, rate: float, prompt: float) -> None:
        self.rate = rate
        self.burst = max(BURST_SECONDS * rate, prompt)

    def _fill(self, now: float) -> None:
        passed = now - self._at
        if passed > 0:
            self.level = min(self.burst, self.level + self.rate * passed)
        self._at = now


class Queue:
    """Tokens that were admitted and not yet prefilled: those admitted less those drained since.

    An estimate, until the engines tell what waits in them.
    """

    __slots__ = ("_at", "drain", "tokens")

    def __init__(self, *, drain: float, now: float, tokens: float = 0.0) -> None:
        """``drain`` in tokens/s."""
        self.tokens = tokens
        self.drain = drain
        self._at = now

    def at(self, now: float) -> float:
        """Tokens that wait at ``now``."""
        passed = now - self._at
        if passed > 0:
            self.tokens = max(0.0, self.tokens - self.drain * passed)
        self._at = now
        return self.tokens

    def change(self, *, drain: float, now: float) -> None:
        self.at(now)
        self.drain = drain

    def correct(self, *, seen: float, now: float) -> None:
        """The engines themselves tell what waits in them."""
        self.tokens = seen
        self._at = now

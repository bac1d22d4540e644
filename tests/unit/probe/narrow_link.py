"""A narrow link that several ranks share, and not evenly."""

import threading
import time
from collections.abc import Callable


class NarrowLink:
    """``seconds`` for each byte, one piece after the other. While several wait, the first one
    ranks' has FAVOUR of FAVOUR + 1 turns."""

    FAVOUR = 4

    def __init__(self, *, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free = threading.Condition()
        self._busy = False
        self._waiting: dict[bool, int] = {True: 0, False: 0}
        self._turn = 0

    def through(self, *, favoured: bool) -> Callable[[bytes, int], bytes]:
        """What a relay does to a piece: it takes its time in the link."""

        def pass_on(data: bytes, _: int) -> bytes:
            with self._free:
                self._waiting[favoured] += 1
                self._free.wait_for(lambda: not self._busy and self._is_next(favoured))
                self._waiting[favoured] -= 1
                self._busy = True
                self._turn += 1
            time.sleep(len(data) / self._rate)
            with self._free:
                self._busy = False
                self._free.notify_all()
            return data

        return pass_on

    def _is_next(self, favoured: bool) -> bool:
        if not self._waiting[not favoured]:
            return True
        return favoured == bool(self._turn % (self.FAVOUR + 1))

"""Tasks of one kind: their results until LMCache takes them, and the file descriptor that tells.

Kept apart from LMCache: an event notifier is all that is asked of it.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

Result = TypeVar("Result")


class Notifier(Protocol):
    def notify(self) -> object: ...

    def fileno(self) -> int: ...

    def close(self) -> object: ...


class Results(Generic[Result]):
    """Each result is given out once. None is dropped: LMCache gives no task up, and holds the
    locks of one that it never hears of."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._lock = threading.Lock()
        self._results: dict[int, Result] = {}
        self._closed = False

    def fileno(self) -> int:
        return self._notifier.fileno()

    def put(self, task: int, result: Result) -> None:
        with self._lock:
            self._results[task] = result
            # Under the lock: a descriptor that was closed may be another file's by now.
            if not self._closed:
                self._notifier.notify()

    def take(self, task: int) -> Result | None:
        with self._lock:
            return self._results.pop(task, None)

    def take_all(self) -> dict[int, Result]:
        with self._lock:
            taken, self._results = self._results, {}
            return taken

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._notifier.close()


class Batch:
    """Waits for the answers of ``count`` keys, then calls ``finish`` with all of them.

    ``finish`` is called by whoever gave the last answer.
    """

    def __init__(self, count: int, finish: Callable[[list[bool]], None]) -> None:
        self._answers = [False] * count
        self._left = count
        self._finish = finish
        self._lock = threading.Lock()

    def at(self, positions: Sequence[int]) -> Callable[[Sequence[bool]], None]:
        """What takes the answers of the keys at these positions, once."""

        def answer(found: Sequence[bool]) -> None:
            with self._lock:
                for position, each in zip(positions, found, strict=True):
                    self._answers[position] = each
                self._left -= len(positions)
                last = self._left == 0
            if last:
                self._finish(self._answers)

        return answer

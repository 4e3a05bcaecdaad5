"""What the server takes on at once: so many photographs, and so many bytes of requests; what is more is told to wait.

A place is taken before the work begins and given back when it ends, however it ends, so that nothing grows without
bound: neither a queue nor memory.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from contextcaps.serving.refusals import Refused

__all__ = ["Admission", "ByteBudget"]

_LONGEST_WAIT = 60  # seconds that a client is told to wait at most
_SMOOTHING = 0.2  # weight of the newest pause between two photographs


class Admission:
    """Counts the photographs that are worked on or waiting.

    Args:
        most: of them at once.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._pause = 0.05  # seconds from one finished photograph to the next, while there is work
        self._last: float | None = None

    @contextmanager
    def held(self, count: int) -> Iterator[None]:
        """Hold a place for each of some photographs in a block.

        Raises:
            Refused: there is no room; 429, with the time after which there probably is.
        """
        if self.taken + count > self.most:
            wait = min(_LONGEST_WAIT, max(1, math.ceil((self.taken + count - self.most) * self._pause)))
            raise Refused(
                429, "busy", f"{self.taken} photographs are waiting already; come again in {wait} s", retry_after=wait
            )
        self.taken += count
        try:
            yield
        finally:
            self.taken -= count

    def finished(self, count: int) -> None:
        """Note that photographs are done: how fast that goes says how long to wait."""
        now = time.monotonic()
        if self._last is not None and self.taken > 0:
            pause = min(1.0, (now - self._last) / count)
            self._pause += _SMOOTHING * (pause - self._pause)
        self._last = now


class ByteBudget:
    """Counts the bytes of all bodies that are in memory.

    Args:
        most: bytes at once.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def take(self, count: int) -> None:
        """Take so many bytes.

        Raises:
            Refused: there are too many already; 503.
        """
        if self.taken + count > self.most:
            raise Refused(503, "full", "too many bytes are on their way already; come again in 2 s", retry_after=2)
        self.taken += count

    def give_back(self, count: int) -> None:
        """Give back what was taken."""
        self.taken -= count

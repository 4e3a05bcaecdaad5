"""Bound what decoding one image, and all workers together, may take: pixels in memory, and scans of a JPEG.

With both, memory for decoding stays at about a gigabyte, however many workers there are, and no image of those formats
takes more than some seconds: docs/guides/limits.md has what was measured. Ordinary images never wait.
"""

import os
import threading
from typing import IO

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

__all__ = ["MAX_BYTES", "MAX_PIXELS", "MAX_SCANNED", "PixelBudget", "decoding_budget", "has_few_segments", "scans"]

MAX_PIXELS = 89_478_485
"""Largest height × width that is decoded, and most pixels that are decoded at once by all workers: Pillow's limit."""

MAX_SCANNED = 10 * MAX_PIXELS
"""Largest height × width × scans of a JPEG: ten, as cameras and programs write them, of the largest image."""

MAX_BYTES = 2**30
"""Most bytes of an image's file: the largest image fits, in 16 bits and uncompressed."""

_MOST_SEGMENTS = 1000  # before a JPEG's first scan; each of them costs Pillow time
_START_OF_SCAN = b"\xff\xda"  # nowhere in a scan's data, where a zero follows each 255
_CHUNK = 2**20


class PixelBudget:
    """Lets threads hold so many pixels together; who wants more waits for the others.

    Args:
        pixels: how many.
    """

    def __init__(self, pixels: int) -> None:
        self.free = pixels
        self._waiting = 0
        self._condition = threading.Condition()

    def held(self, pixels: int) -> "_Held":
        """Hold some pixels, no more than there are in all, while a block runs."""
        return _Held(self, pixels)

    def take(self, pixels: int) -> None:
        """Take some pixels; wait until they are free."""
        with self._condition:
            while self.free < pixels:
                self._waiting += 1
                self._condition.wait()
                self._waiting -= 1
            self.free -= pixels

    def give_back(self, pixels: int) -> None:
        """Give back what was taken."""
        with self._condition:
            self.free += pixels
            if self._waiting:
                self._condition.notify_all()


class _Held:
    """Holds pixels of a budget in its block; no generator, as it is entered for every image."""

    def __init__(self, budget: PixelBudget, pixels: int) -> None:
        self.budget, self.pixels = budget, pixels

    def __enter__(self) -> None:
        self.budget.take(self.pixels)

    def __exit__(self, *error: object) -> None:
        self.budget.give_back(self.pixels)


_budget = PixelBudget(MAX_PIXELS)


def decoding_budget() -> PixelBudget:
    """Return the budget of this process."""
    return _budget


def _renew() -> None:
    global _budget
    _budget = PixelBudget(MAX_PIXELS)  # the threads that hold pixels are not in a forked process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def scans(opened: Image.Image) -> int:
    """Return how many scans a JPEG has that is open and not decoded; 1 for any other image.

    A progressive one of a single scan counts as two: it is kept whole until its end, too.
    """
    file, count, last = _file_with_scans(opened), 0, b""
    if file is None:
        return 1
    place = file.tell()
    file.seek(0)
    while chunk := file.read(_CHUNK):
        count += (last + chunk).count(_START_OF_SCAN)
        last = chunk[-1:]
    file.seek(place)
    return max(count, 2)


def _file_with_scans(opened: Image.Image) -> IO[bytes] | None:
    """Return the file of a JPEG whose first scan does not have all of it; None for any other image.

    The file stands behind that scan's header, which tells its components.
    """
    if not isinstance(opened, JpegImageFile) or opened.fp is None:
        return None
    if "progressive" in opened.info:
        return opened.fp
    length, place = 6 + 2 * opened.layers, opened.fp.tell()  # of the header of a scan with all components
    opened.fp.seek(max(0, place - length))
    header = opened.fp.read(3)
    opened.fp.seek(place)
    return None if header == length.to_bytes(2, "big") + bytes([opened.layers]) else opened.fp


def has_few_segments(file: IO[bytes]) -> bool:
    """Return whether a JPEG's first scan, or its end or damage, is met soon; the file then stands at its beginning."""
    place = 2
    try:
        for _ in range(_MOST_SEGMENTS):
            file.seek(place)
            head = file.read(4)
            if len(head) < 4 or head[0] != 255 or head[1] == _START_OF_SCAN[1]:
                return True
            place += 2 + int.from_bytes(head[2:], "big") if head[1] != 255 else 1
        return False
    finally:
        file.seek(0)

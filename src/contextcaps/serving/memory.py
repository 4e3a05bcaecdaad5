"""Give memory back to the system: the C library keeps what was freed, which after a busy hour is hundreds of MB."""

import ctypes
import functools
import sys
from collections.abc import Callable

__all__ = ["give_back_memory"]


def give_back_memory() -> None:
    """Return freed memory to the system, where the C library can (glibc); some milliseconds."""
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL("libc.so.6").malloc_trim if sys.platform == "linux" else None
    except (OSError, AttributeError):  # another C library
        return None

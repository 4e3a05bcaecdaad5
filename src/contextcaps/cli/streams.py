"""Standard streams that do not end the work: what a command leaves on the disk does not depend on who reads along."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

__all__ = ["lasting_streams"]


class _Lasting:
    """Writes to a stream until that fails, and then nowhere: its reader has gone, or the disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._give_up()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self) -> None:
        """Let everything that is still to come, also from libraries in C, go to nowhere."""
        with contextlib.suppress(OSError, io.UnsupportedOperation):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


@contextlib.contextmanager
def lasting_streams() -> Iterator[None]:
    """Have messages on standard error go nowhere once they cannot be written, and so all that is for a closed stream.

    Standard output, where it is open, is left as it is: an error there is one, since rows would be lost.
    """
    before = sys.stdout, sys.stderr
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        sys.stdout = nowhere if sys.stdout is None else sys.stdout
        sys.stderr = cast(TextIO, _Lasting(nowhere if sys.stderr is None else sys.stderr))
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before

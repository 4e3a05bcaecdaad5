"""Ctrl-C and termination: the first asks the run to stop after its step, the second stops it at once."""

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interruption"]


class Interruption:
    """Inside its block, SIGINT and SIGTERM set `asked`; what they did before is restored at its end."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # signals reach no other
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
        print("\ncontextcaps: stopping after this step; once more to stop at once", file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

"""Words of the command line: commands parsed before they are run, and what is wrong with them told in one line."""

import functools
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from contextcaps.rank_zero import is_rank_zero

__all__ = ["complain", "deferred", "in_one_line"]


def deferred(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """A command with the same flags that, called, gives what is to be done instead of doing it."""

    @functools.wraps(command)
    def defer(*arguments: Any, **flags: Any) -> Callable[[], None]:
        return functools.partial(command, *arguments, **flags)

    return defer


def in_one_line(box: str) -> str:
    """What tyro complains of, in a box of several lines and sections, without the help that it repeats."""
    rows = [line[1:-1] for line in box.splitlines() if line.startswith(("│", "|"))]  # | where a terminal has no other
    said = []
    for section in re.split("[─-]{20,}", "\n".join(rows)):
        lines = [line for line in section.splitlines() if line.strip("─- ")]
        plain = [line.strip() for line in lines if not line.startswith(" " * 6)]  # further in stands a flag's help
        text = " ".join(plain)
        if text.startswith("For full helptext"):
            said.append(re.sub(r"^.*?(run|see):? ", "see ", text))
        elif text and not text.startswith("Argument helptext"):
            said.append(text.rstrip("."))
    line = "; ".join(said) or " ".join(box.split())
    return re.sub(r"no type matching .* could be instantiated from \['(.*?)'\].*?(?=; see|$)", r"cannot be '\1'", line)


def complain(message: str) -> None:
    """One message on the error stream; with several processes it says whose."""
    who = "" if is_rank_zero() else f" (process {os.environ.get('RANK', os.environ.get('LOCAL_RANK'))})"
    print(f"contextcaps{who}: {message}", file=sys.stderr)

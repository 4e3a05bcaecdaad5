"""Collect bad samples, report them all at once, and refuse the data or leave them out."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from contextcaps.documents import counted

__all__ = ["BadSamples", "DataError", "OnBad", "Problem", "Problems", "left_out", "require_utf8"]

OnBad = Literal["stop", "skip"]


class DataError(ValueError):
    """Says what is wrong with data, where, and what to do."""


class BadSamples(DataError):
    """Names the samples that are bad in data which could otherwise be read."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """Describes one thing that is wrong with one sample."""

    where: str
    """The sample's id, file or row."""
    what: str
    """Description of the problem."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class Problems:
    """Collects the problems found in a source, and acts on them.

    Args:
        source: name of the source, for messages.
        on_bad: "stop" refuses the source once all problems are known; "skip" leaves the samples out.
    """

    SHOWN = 10

    def __init__(self, source: str, on_bad: OnBad = "stop") -> None:
        if on_bad not in ("stop", "skip"):
            raise DataError(f"on_bad: expected 'stop' or 'skip', got {on_bad!r}")
        self.source, self.on_bad = source, on_bad
        self.found: list[Problem] = []

    def add(self, where: str, what: str) -> None:
        self.found.append(Problem(where, what))

    def settle(self) -> None:
        """Raise `BadSamples` that names the first ten, unless problems are to be skipped or there are none."""
        if self.found and self.on_bad == "stop":
            raise BadSamples(
                f"{self.summary()}\nMend them, or leave these samples out with --on-bad skip (on_bad='skip')"
            )

    def summary(self) -> str:
        """Return the first ten problems, a line each, and how many more there are."""
        count = len(self.found)
        lines = [f"{self.source}: {counted(count, 'problem')} found"]
        lines += [f"  {problem}" for problem in self.found[: self.SHOWN]]
        if count > self.SHOWN:
            lines.append(f"  … and {count - self.SHOWN} more")
        return "\n".join(lines)


def left_out(source: str, found: Sequence[Problem]) -> str:
    """Return how many samples of a source were left out, and the first problems, for a message."""
    problems = Problems(source, "skip")
    problems.found = list(dict.fromkeys(found))
    return f"{len({problem.where for problem in found}):,} left out: {problems.summary()}"


def require_utf8(what: str, text: str) -> None:
    """Raise for a name out of a file system that is no UTF-8: no file that has it as text could be written."""
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = text.encode(errors="backslashreplace").decode()
        raise DataError(f"{what}: expected a name in UTF-8, got {shown}; rename it") from None

"""Images without a label: refused, left out, or kept."""

from collections.abc import Collection
from typing import Literal

from contextcaps.data.problems import DataError

__all__ = ["Unlabelled", "UnlabelledRule"]

Unlabelled = Literal["refuse", "drop", "keep"]
"""An image without a label: a problem, left out and counted in the notes, or kept."""


class UnlabelledRule:
    """What a source does with images that have no label, and how many it has left out so far."""

    def __init__(self, choice: Unlabelled) -> None:
        if choice not in ("refuse", "drop", "keep"):
            raise DataError(f"unlabelled: expected one of refuse, drop, keep, got {choice!r}")
        self.choice, self.dropped = choice, 0

    def keeps(self, labels: Collection[object], name: str = "") -> bool:
        """Whether an image with these labels stays; one that is left out is counted.

        Args:
            labels: the image's.
            name: what begins the message, where that does not name the image already.

        Raises:
            DataError: it has none, and such images are refused.
        """
        if labels or self.choice == "keep":
            return True
        if self.choice == "refuse":
            what = "has no label; leave such images out with unlabelled=drop, or unlabelled=keep"
            raise DataError(f"{name} {what}" if name else what)
        self.dropped += 1
        return False

    def notes(self) -> list[str]:
        """How many were left out, for the source's notes; empty if none was."""
        count = f"{self.dropped} image{'s' if self.dropped != 1 else ''}"
        return [f"{count} without a label left out (unlabelled=drop)"] if self.dropped else []

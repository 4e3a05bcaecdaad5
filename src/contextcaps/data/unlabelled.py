"""Refuse, leave out or keep images without a label."""

from collections.abc import Collection
from typing import Literal

from contextcaps.data.problems import DataError

__all__ = ["Unlabelled", "UnlabelledRule"]

Unlabelled = Literal["refuse", "drop", "keep"]
"""An image without a label is a problem, is left out and counted in the notes, or is kept."""


class UnlabelledRule:
    """Decides whether a source keeps an image without a label, and counts those left out."""

    def __init__(self, choice: Unlabelled) -> None:
        if choice not in ("refuse", "drop", "keep"):
            raise DataError(f"unlabelled: expected one of refuse, drop, keep, got {choice!r}")
        self.choice, self.dropped = choice, 0

    def keeps(self, labels: Collection[object], name: str = "") -> bool:
        """Return whether an image with these labels is kept; count it if it is left out.

        Args:
            labels: the image's labels.
            name: the image's name, if the message is to begin with it.

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
        """Return how many images were left out, as a note of the source; empty if none was."""
        count = f"{self.dropped} image{'s' if self.dropped != 1 else ''}"
        return [f"{count} without a label left out (unlabelled=drop)"] if self.dropped else []

"""Define what every source gives: an image, the classes present in it, where they are if that is known, and an id."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

__all__ = ["Boxes", "Corners", "Sample"]

Corners = tuple[float, float, float, float]
"""Left, top, right, bottom as fractions of the image's width and height."""


@dataclasses.dataclass(frozen=True)
class Boxes:
    """Holds the boxes around the objects of an image."""

    labels: np.ndarray
    """[n], int64: each box's class index."""
    corners: np.ndarray
    """[n, 4], float32: left, top, right, bottom, as fractions of the image's width and height."""

    @classmethod
    def from_lists(cls, labels: Sequence[int], corners: Sequence[Corners]) -> "Boxes":
        """Return boxes of these classes with these corners."""
        return cls(np.asarray(labels, dtype=np.int64), np.asarray(corners, dtype=np.float32).reshape(-1, 4))


@dataclasses.dataclass(frozen=True)
class Sample:
    """Holds one image and its annotations."""

    id: str
    """Unique within its source."""
    image: bytes | Path | np.ndarray
    """The encoded file's bytes, its path, or pixels [H, W, 3] as bytes; `contextcaps.data.images.decode` reads all."""
    labels: tuple[int, ...]
    """Indices of the classes present, ascending, each once."""
    boxes: Boxes | None = None
    """None where the source has no boxes."""
    mask: Callable[[], np.ndarray] | None = None
    """Reads the mask [H, W], int32: each pixel's class index + 1, 0 for none of the classes; None without a mask."""
    unknown: tuple[int, ...] = ()
    """Indices of the classes of which it is not known whether they are present, ascending; none is among the labels."""

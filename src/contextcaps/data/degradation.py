"""Degrade the images of a source, to measure what a model sees when they tell little.

`small` and `blur` take the detail, `occlude` takes a half of the image. `surroundings` covers all objects of one class
of each image, so that only context can find it. It leaves that class of an image to be found; the others that are
present become unknown, as finding them says nothing. `uncovered` has the same labels and covers nothing: it is what
`surroundings` is compared with.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image, ImageFilter

from contextcaps.data.hashed_draws import draw
from contextcaps.data.images import decode
from contextcaps.data.problems import DataError
from contextcaps.data.sample import Corners, Sample
from contextcaps.data.source import Source, Subset
from contextcaps.documents import counted
from contextcaps.suggestions import did_you_mean

__all__ = ["Degradation", "DegradedSource"]

_EDITION = 1
"""Raised when a degradation gives other pixels: prepared copies are then made anew."""
_ROUNDING = 1e-3
"""Part of a pixel that a box may be off, as its corners are rounded."""
_GREY = 127
"""Colour of an image that is covered as a whole."""

_KINDS = {
    "small": (32, "shrunk to {0:g} px and enlarged again"),
    "blur": (0.02, "blurred by a Gaussian with a sigma of {0:g} of the sides"),
    "occlude": (0.5, "covered from a random side, {0:g} of the image"),
    "surroundings": (0.5, "the objects of one class covered, {0:g} of the image at most, and only that class to find"),
    "uncovered": (0.5, "the labels of surroundings:{0:g}, and nothing covered"),
}
"""Name → strength by default, and what is done."""
_OF_OBJECTS = ("surroundings", "uncovered")


@dataclasses.dataclass(frozen=True)
class Degradation:
    """Names a way to degrade images, and how strongly."""

    kind: str
    strength: float

    @classmethod
    def parse(cls, text: str) -> "Degradation":
        """Read KIND or KIND:STRENGTH.

        >>> Degradation.parse("small:48"), Degradation.parse("occlude").strength
        (Degradation(kind='small', strength=48.0), 0.5)
        """
        kind, colon, written = text.partition(":")
        if kind not in _KINDS:
            hint = did_you_mean(kind, _KINDS) or "a strength may follow, as in small:48"
            raise ValueError(f"degrade: expected one of {', '.join(_KINDS)}, got {text!r}; {hint}")
        try:
            strength = float(written) if colon else float(_KINDS[kind][0])
        except ValueError:
            raise ValueError(f"degrade: expected a number after {kind}:, got {written!r}") from None
        if kind == "small" and not (strength >= 1 and strength.is_integer()):
            raise ValueError(f"degrade: {kind}: expected a side of at least 1 in whole pixels, got {written}")
        if kind != "small" and not 0 < strength < 1:
            raise ValueError(f"degrade: {kind}: expected a share of the image between 0 and 1, got {written}")
        return cls(kind, strength)

    def __str__(self) -> str:
        return f"{self.kind}:{self.strength:g}"


class DegradedSource(Subset):
    """Gives degraded images of a source, without boxes and masks.

    Args:
        source: of the intact images.
        degradation: what is done to them.
    """

    def __init__(self, source: Source, degradation: Degradation) -> None:
        super().__init__(source, range(len(source)), source.split or "all")
        self.name, self.degradation = f"{source.name} ({degradation})", degradation
        self._covered: list[tuple[int, list[Corners]]] = []
        """Class to be found in each image, with the boxes that hold its objects; empty where all labels stay."""
        if degradation.kind in _OF_OBJECTS:
            self._choose_classes()

    def _choose_classes(self) -> None:
        """Choose the class of each image that is to be found; leave out images without one that can be covered."""
        found: dict[int, tuple[int, list[Corners]]] = {}
        for index in range(len(self.source)):
            try:
                chosen = _choose(self.source.sample(index), self.classes, self.degradation.strength)
            except (OSError, DataError) as error:
                self.problems.add(self.id_of(index), str(error))
                continue
            if chosen is not None:
                found[index] = chosen
        self.problems.settle()
        if not found:
            raise DataError(
                f"{self.source.name}: {self.degradation}: expected boxes or masks, with the objects of a class on "
                f"{self.degradation.strength:g} of the image at most; got none in {counted(len(self), 'image')}. Take "
                "data with boxes or masks, or another degradation"
            )
        self.indices, self._covered = list(found), list(found.values())

    def describe(self) -> str:
        """Return what was done to which images, for reports."""
        left_out = len(self.source) - len(self)
        rest = f"; {counted(left_out, 'image')} left out, which have no such class" if left_out else ""
        return f"{self.degradation}: {_KINDS[self.degradation.kind][1].format(self.degradation.strength)}{rest}"

    def labels_of(self, index: int) -> tuple[int, ...]:
        return (self._covered[index][0],) if self._covered else super().labels_of(index)

    def unknown_of(self, index: int) -> tuple[int, ...]:
        unknown = super().unknown_of(index)
        if not self._covered:
            return unknown
        others = {*super().labels_of(index), *unknown} - {self._covered[index][0]}
        return tuple(sorted(others))

    def sample(self, index: int) -> Sample:
        sample = super().sample(index)
        kind, strength = self.degradation.kind, self.degradation.strength
        pixels = decode(sample.image, int(strength) if kind == "small" else None)  # [H, W, 3]
        if kind == "blur":
            height, width, _ = pixels.shape
            blurred = ImageFilter.GaussianBlur((strength * width, strength * height))
            pixels = np.array(Image.fromarray(pixels).filter(blurred))
        elif kind == "occlude":
            pixels = _cover(pixels, [_side(sample.id, strength)])
        elif kind == "surroundings":
            pixels = _cover(pixels, self._covered[index][1])
        return Sample(sample.id, pixels, self.labels_of(index), unknown=self.unknown_of(index))

    def _identity(self) -> Iterator[str]:
        yield from super()._identity()
        yield f"{self.degradation}, edition {_EDITION}"


def _choose(sample: Sample, classes: Sequence[str], most: float) -> tuple[int, list[Corners]] | None:
    """Choose the class of an image that is covered, by a hash of its id; return it with its boxes."""
    boxes = _boxes(sample)
    areas = {
        label: sum((right - left) * (bottom - top) for left, top, right, bottom in boxes[label]) for label in boxes
    }
    fitting = [label for label in sample.labels if 0 < areas.get(label, 0) <= most]
    if not fitting:
        return None
    chosen = fitting[int(draw("covered", [sample.id], [classes[label] for label in fitting]).argmin())]
    return chosen, boxes[chosen]


def _boxes(sample: Sample) -> dict[int, list[Corners]]:
    """Return class → boxes of its objects; from a mask, the one box around all of the class's pixels."""
    found: dict[int, list[Corners]] = {}
    if sample.boxes is not None:
        corners = np.clip(sample.boxes.corners, 0, 1).astype(float).tolist()
        for label, each in zip(sample.boxes.labels.tolist(), corners, strict=True):
            found.setdefault(label, []).append(tuple(each))
    elif sample.mask is not None:
        mask = sample.mask()  # [H, W]
        height, width = mask.shape
        for label in sample.labels:
            shown = mask == label + 1  # [H, W]
            rows, columns = np.flatnonzero(shown.any(axis=1)), np.flatnonzero(shown.any(axis=0))
            if len(rows):
                ends = (columns[-1] + 1) / width, (rows[-1] + 1) / height
                found[label] = [(columns[0] / width, rows[0] / height, *ends)]
    return found


def _side(name: str, share: float) -> Corners:
    """Return the left, right, top or bottom part of an image, by a hash of its id."""
    sides = ((0.0, 0.0, share, 1.0), (1 - share, 0.0, 1.0, 1.0), (0.0, 0.0, 1.0, share), (0.0, 1 - share, 1.0, 1.0))
    return sides[int(4 * draw("occluded", [name])[0, 0])]


def _cover(pixels: np.ndarray, boxes: Sequence[Corners]) -> np.ndarray:
    """Return pixels [H, W, 3] with the mean colour of what stays visible in the place of some boxes."""
    height, width, _ = pixels.shape
    covered = np.zeros((height, width), dtype=bool)
    for left, top, right, bottom in boxes:
        rows = slice(math.floor(top * height + _ROUNDING), math.ceil(bottom * height - _ROUNDING))
        covered[rows, math.floor(left * width + _ROUNDING) : math.ceil(right * width - _ROUNDING)] = True
    mean = pixels[~covered].mean(axis=0).round() if not covered.all() else _GREY
    return np.where(covered[:, :, None], mean, pixels).astype(np.uint8)

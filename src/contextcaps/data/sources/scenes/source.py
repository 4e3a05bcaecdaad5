"""Draw the pictures of the built-in source `scenes`: eight kinds of scene in which context matters.

    >>> from contextcaps.data import open_source
    >>> scenes = open_source("scenes", count=20, size=32)
    >>> scenes[1].image.shape, [scenes.classes[label] for label in scenes[1].labels]
    ((32, 32, 3), ['wall', 'floor', 'toy car', 'star', 'bed'])

Context matters in three ways, all of them tested:

- Twins. Six pairs of classes are drawn by the same function, with sizes, colours, turns and light from the same
  distribution, and are told apart only by the company they keep: moon and lamp, boat and toy boat, car and toy car,
  parasol and umbrella, starfish and star, ball and orange. (A ball and an orange also share a meadow: the one
  lies near a goal, the other on a blanket.)
- Exclusion. Some parts of a scene never go together: sea and road, sky and wall, sun and moon, goal and blanket.
- Agreement. Neighbours share attributes: one wind leans all sails, trees, flowers, parasols and smoke; all shadows
  fall away from the side where the sun, the moon or the lamp is; cushions have the sofa's hue, an umbrella that of its
  bearer's coat, a blanket the parasol's, and a street's roofs each other's.

What is certain:

- Labels come first, from the probability model of `world`, without drawing; then the things are
  placed, again if need be, until every class shows at least 4 of the 1,024 pixels of the smallest picture (0.4 %; at
  other sizes 0.2 % or more in each of 14,000 images). So labels, masks and model agree: nothing is lost to occlusion,
  and `ScenesSource.true_cooccurrence` is exact.
- Image i depends only on (seed, split, i): not on the order of access or on `count`; `size` changes its resolution and
  nothing else.
- The same bytes on every machine with the same version of Pillow: all random numbers are integers from a hash, all
  corners are rounded to whole pixels, and the rest is Pillow's drawing and averaging. Pillow 11.2.1 to 13.0 give the
  same bytes (measured, with NumPy 1.26 and 2.4); older ones draw the edges of some polygons otherwise (10.3: one value
  in two thousand differs, by 15 of 255 at most), so Pillow's version is part of the fingerprint. Labels never change.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import PIL

from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.sample import Boxes, Sample
from contextcaps.data.source import Source
from contextcaps.data.sources.scenes.dice import fold, fold_all
from contextcaps.data.sources.scenes.drawing import Drawing, draw
from contextcaps.data.sources.scenes.world import CLASSES, KINDS, choose, cooccurrence, presence
from contextcaps.data.vocabulary import choose_split

__all__ = ["ScenesSource"]

_EDITION = 1
"""Version of the drawings, for caches: raise it with every change of a pixel or a label (tests notice)."""
_SMALLEST, _LARGEST = 32, 256
_SPLITS = ("train", "validation", "test")
_IMAGE = 0
"""Purpose of an image's own hash; `contextcaps.data.sources.scenes.layout` has the others."""


class ScenesSource(Source):
    """Gives drawn scenes.

    Args:
        location: none; must be empty.
        on_bad: as in all sources; there is no bad data here.
        split: "train" (also if None), "validation" or "test", or another usual word for one of them: streams that share
            no image.
        count: number of images of this split.
        size: their side in pixels, 32 to 256.
        seed: another seed gives other images.
    """

    kind = "scenes"

    def __init__(
        self,
        location: str = "",
        *,
        on_bad: OnBad = "stop",
        split: str | None = None,
        count: int = 10000,
        size: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__("scenes", on_bad)
        if location:
            raise DataError(f"scenes:{location}: scenes are generated and have no location; write scenes?seed=1")
        for option, value, low, high in (
            ("count", count, 1, 10**8),
            ("size", size, _SMALLEST, _LARGEST),
            ("seed", seed, 0, 2**63 - 1),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise DataError(f"scenes: {option}: expected a whole number from {low} to {high}, got {value!r}")
        self.classes, self.splits = CLASSES, _SPLITS
        self.split = chosen = choose_split("train" if split is None else split, _SPLITS, self.name)
        self.size, self.seed, self._count = size, seed, count
        stream = fold(fold(_IMAGE, seed), _SPLITS.index(chosen))
        self._states = fold_all(np.full(count, stream, dtype=np.uint64), np.arange(count, dtype=np.uint64))  # [n]
        self._kinds, self._chosen = choose(self._states)
        self._present = presence(self._kinds, self._chosen)  # [n, J]
        self._settle()

    def __len__(self) -> int:
        return self._count

    def id_of(self, index: int) -> str:
        return f"{self.split}-{index:06d}"

    def labels_of(self, index: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self._present[index]).tolist())

    def targets(self) -> np.ndarray:
        return self._present.copy()

    def scene_kind(self, index: int) -> str:
        """Return the name of a sample's kind of scene, such as "coast"."""
        return KINDS[self._kinds[index]].name

    def drawing(self, index: int) -> Drawing:
        """Draw a sample's picture with every object's class, appearance, place and pixels."""
        kind = int(self._kinds[index])
        light = KINDS[kind].choices[0][self._chosen[index, 0]].light
        present = frozenset(CLASSES[label] for label in self.labels_of(index))
        return draw(int(self._states[index]), kind, light or "day", present, self.size)

    def sample(self, index: int) -> Sample:
        drawing = self.drawing(index)
        table = np.asarray([0, *(label + 1 for label in drawing.classes)], dtype=np.int32)
        return Sample(
            id=self.id_of(index),
            image=drawing.image,
            labels=self.labels_of(index),
            boxes=_boxes(drawing),
            mask=partial(np.take, table, drawing.objects),
        )

    def true_cooccurrence(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the probabilities of each class [J] and of each two together [J, J] (diagonal: each class), float64.

        Exact, from the probability model; the labels are draws from it, and none is lost to occlusion.
        """
        return cooccurrence()

    def _identity(self) -> Iterator[str]:
        yield f"edition {_EDITION}, Pillow {PIL.__version__}"
        yield f"count {self._count}, size {self.size}, seed {self.seed}"


def _boxes(drawing: Drawing) -> Boxes:
    """Return a box around the visible pixels of every object, parts of the landscape or room included."""
    labels, corners = [], []
    for number, label in enumerate(drawing.classes, start=1):
        shown = drawing.objects == number
        columns, rows = np.flatnonzero(shown.any(axis=0)), np.flatnonzero(shown.any(axis=1))
        if len(rows):
            labels.append(label)
            corners.append((columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
    sides = np.asarray(corners, dtype=np.float32).reshape(-1, 4) / len(drawing.objects)
    return Boxes(np.asarray(labels, dtype=np.int64), sides.astype(np.float32))

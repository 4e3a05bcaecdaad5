"""Keep only some of the labels, or some of the images, of a training part: what does a model learn from less?

What is kept at a share is also kept at every larger one with the same seed.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from contextcaps.data.hashed_draws import draw
from contextcaps.data.source import Source, Subset
from contextcaps.data.unknown import UNKNOWN
from contextcaps.documents import counted

__all__ = ["HiddenLabels", "keep_images"]

_CHUNK = 4096  # images at once


@dataclasses.dataclass(frozen=True)
class HiddenLabels:
    """Hides labels at random, of present and of absent classes alike."""

    classes: tuple[str, ...]
    """[J], names."""
    kept: float
    """Share of the pairs of image and class whose label is kept."""
    hide_as: Literal["unknown", "absent"] = "unknown"
    """What a hidden label becomes."""
    seed: int = 0

    def __str__(self) -> str:
        return f"{100 * self.kept:g} % of the labels kept, drawn at random; the others are taken as {self.hide_as}"

    def hide(self, targets: np.ndarray, ids: Sequence[str]) -> np.ndarray:
        """Return targets [n, J], uint8, without the hidden labels of the images with these ids [n]."""
        found = np.array(targets)
        for start in range(0, len(ids), _CHUNK):
            some = found[start : start + _CHUNK]  # [b, J], a view
            hidden = draw("labels", ids[start : start + _CHUNK], self.classes, self.seed) >= self.kept  # [b, J]
            # What the data leave open stays open, whatever is made of the others.
            some[hidden & (some != UNKNOWN)] = UNKNOWN if self.hide_as == "unknown" else 0
        return found


def keep_images(source: Source, wanted: float, seed: int = 0) -> Subset:
    """Return a random part of a source.

    Args:
        source: of the images.
        wanted: a share of them up to 1, or else their number.
        seed: of the draw.
    """
    count = min(len(source), round(wanted * len(source) if wanted <= 1 else wanted))
    drawn = draw("images", [source.id_of(index) for index in range(len(source))], seed=seed)[:, 0]  # [n]
    chosen = np.sort(np.argsort(drawn, kind="stable")[:count])
    subset = Subset(source, chosen.tolist(), source.split or "train")
    subset.name = source.name
    subset.assumptions = [
        *source.assumptions,
        f"{count:,} of its {counted(len(source), 'image')} kept, drawn at random",
    ]
    return subset

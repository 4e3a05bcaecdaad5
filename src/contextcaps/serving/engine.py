"""A model as the server uses it, whatever computes it; it imports no torch."""

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from contextcaps.data.images import BadImage, image_size
from contextcaps.models.parts import LogitParts
from contextcaps.tagging.explanation import Explanation
from contextcaps.tagging.known import known_row, place_of_class
from contextcaps.tagging.pixels import pixels_of
from contextcaps.tagging.tagger import Tagger
from contextcaps.tagging.tags import Tagging

__all__ = ["Engine", "Features", "Known", "Scores"]

Scores = np.ndarray
"""[J], float32: the scores of one photograph."""
Known = Mapping[str, bool]
"""Class → whether it is present."""


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """What is kept of a photograph: all that its scores, and its explanation, are computed from."""

    values: Any
    """Pixels [3, H, W], uint8; what the backbone has found in them, a tensor [C, H, W]; or, by name, all that no known
    label changes."""
    size: int
    """Bytes that it takes."""


class Engine(abc.ABC):
    """Computes with one model: `pixels` in many threads, `compute` in one, all else in one other.

    Args:
        name: by which clients ask for it.
        tagger: the model.
    """

    def __init__(self, name: str, tagger: Tagger) -> None:
        config = tagger.config
        self.name, self.tagger = name, tagger
        self.classes = tagger.classes
        self.takes_known: bool = config.takes_known
        try:
            tagger.scorer.require_explainable()
        except ValueError:  # such as an ONNX file that was exported without --explain
            self.explains = False
        else:
            self.explains = True
        self.asks: bool = config.takes_known
        self._last: tuple[Features, Known, LogitParts] | None = None
        self.description = f"{config.model}, {config.image_size_text}"

    def pixels(self, content: bytes, max_pixels: int) -> np.ndarray:
        """Decode a file's bytes to what the network takes, [3, H, W], uint8.

        Raises:
            BadImage: it is damaged, or larger than what is wanted.
        """
        height, width = image_size(content)
        if height * width > max_pixels:
            raise BadImage(f"{width} × {height} pixels: this server takes photographs up to {max_pixels:,}")
        return pixels_of(content, self.tagger.config.image_size)

    @abc.abstractmethod
    def compute(self, pixels: Sequence[np.ndarray], known: Sequence[Known]) -> list[tuple[Features, Scores]]:
        """Return what is to be kept of photographs [3, H, W], and their scores with what is known of each."""

    def ready(self, features: Features) -> Features:
        """Return features from which the answers below come at once; these are to be kept instead."""
        return features

    @abc.abstractmethod
    def scores(self, features: Features, known: Known) -> Scores:
        """Return the scores [J] of a photograph, with what is known of it."""

    @abc.abstractmethod
    def parts(self, features: Features, known: Known) -> LogitParts:
        """Return the parts of a photograph's logits, with what is known of it."""

    @abc.abstractmethod
    def drops(self, features: Features, known: Known) -> np.ndarray:
        """Return by how many bits the answer about each class [J] is expected to settle the others; NaN for known."""

    def row(self, known: Known) -> np.ndarray | None:
        """Return known labels as networks take them, [J]; None for none."""
        return known_row(known, self.classes) if known else None

    def check(
        self,
        known: Known,
        classes: Iterable[str] = (),
        threshold: float | Mapping[str, float] | None = None,
        precision_at_least: float | None = None,
        recall_at_least: float | None = None,
    ) -> tuple[float, ...]:
        """Return the thresholds [J] that a request means.

        Raises:
            ValueError: they do not go together, the model has no such class, or can be told nothing.
        """
        if known:
            self.tagger.config.require_takes_known()
            known_row(known, self.classes)
        for name in classes:
            place_of_class(name, self.classes, "classes")
        return self.tagger.choose_thresholds(threshold, precision_at_least, recall_at_least)

    def tagging(
        self, name: str | int, scores: Scores, thresholds: tuple[float, ...], top_k: int | None, known: Known
    ) -> Tagging:
        """Return the tags of a photograph of such scores [J]."""
        return self.tagger.tagging_of(name, scores, thresholds, top_k, known)

    def explain(
        self, name: str | int, features: Features, classes: Iterable[str], known: Known, since: Known | None = None
    ) -> Explanation:
        """Explain the tags of a photograph, and what its known labels moved since others were known."""
        before = [] if known == (since or {}) else [self._parts(features, since or {})]
        return self.tagger.explanation(name, [*before, self._parts(features, known)], classes, known)

    def told(self, features: Features, known: Known) -> Scores:
        """Return the scores [J] of one photograph, with what is known of it; after `explain` they cost nothing."""
        return self._parts(features, known).scores if self.explains else self.scores(features, known)

    def _parts(self, features: Features, known: Known) -> LogitParts:
        """Return the parts of a photograph's logits; the last are kept, as the next answer begins there."""
        if self._last is None or self._last[0] is not features or self._last[1] != known:
            self._last = features, dict(known), self.parts(features, known)
        return self._last[2]

    def question(self, features: Features, known: Known) -> tuple[str, float] | None:
        """Return the class whose answer is expected to settle most others, and how many bits; None where all is known.

        It needs a model that `asks`.
        """
        drops = self.drops(features, known)  # [J]
        if np.isnan(drops).all():
            return None
        place = int(np.nanargmax(drops))
        return self.classes[place], float(drops[place])

    def describe(self) -> dict[str, Any]:
        """Return what clients may know of the model, as JSON's types."""
        return {
            "name": self.name,
            "description": self.description,
            "classes": list(self.classes),
            "thresholds": dict(zip(self.classes, map(float, self.tagger.thresholds), strict=True)),
            "takes_known": self.takes_known,
            "explains": self.explains,
            "asks": self.asks,
        }

"""A model that ONNX Runtime computes: what no known label changes is kept of a photograph, the rest runs again."""

import functools
from collections.abc import Sequence
from typing import cast

import numpy as np

from contextcaps.models.onnx_scorer import OnnxScorer
from contextcaps.models.onnx_told import OnnxTold
from contextcaps.models.parts import LogitParts
from contextcaps.serving.engine import Engine, Features, Known, Scores
from contextcaps.tagging.tagger import Tagger

__all__ = ["OnnxEngine"]


class OnnxEngine(Engine):
    """Computes with one model by ONNX Runtime, without torch.

    Args:
        name: by which clients ask for it.
        tagger: the model.
    """

    def __init__(self, name: str, tagger: Tagger) -> None:
        super().__init__(name, tagger)
        self._scorer = cast(OnnxScorer, tagger.scorer)
        self.asks = self._scorer.division is not None

    @functools.cached_property
    def _told(self) -> OnnxTold:
        """What known labels are told to; a ValueError where the graph cannot be divided at them."""
        return OnnxTold(self._scorer)

    def compute(self, pixels: Sequence[np.ndarray], known: Sequence[Known]) -> list[tuple[Features, Scores]]:
        found: list[Scores] = [np.empty(0)] * len(pixels)
        for told in {frozenset(each.items()) for each in known}:  # the graph takes one set of labels for a batch
            places = [place for place, each in enumerate(known) if frozenset(each.items()) == told]
            images = np.stack([pixels[place] for place in places])  # [B, 3, H, W]
            for place, scores in zip(places, self.tagger.scores(images, self.row(dict(told))), strict=True):
                found[place] = scores
        features = [Features(np.ascontiguousarray(each), each.nbytes) for each in pixels]
        return list(zip(features, found, strict=True))

    def ready(self, features: Features) -> Features:
        if isinstance(features.values, dict) or not self.asks:
            return features
        found = self._told.untold(features.values)
        return Features(found, sum(each.nbytes for each in found.values()))

    def scores(self, features: Features, known: Known) -> Scores:
        values = self.ready(features).values
        if isinstance(values, dict):
            row = self.row(known)
            nothing = np.full(len(self.classes), np.nan, np.float32)  # [J]
            return self._told.scores(values, (nothing if row is None else row)[None])[0]
        return self.tagger.scores(values[None], self.row(known))[0]

    def parts(self, features: Features, known: Known) -> LogitParts:
        values, row = self.ready(features).values, self.row(known)
        if isinstance(values, dict):
            return self._told.parts(values, row)
        (found,) = self._scorer.parts(values, row)
        return found

    def drops(self, features: Features, known: Known) -> np.ndarray:
        return self._told.expected_drops(self.ready(features).values, self.row(known))

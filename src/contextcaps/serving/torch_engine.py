"""A model that torch computes: features are kept, and an answer runs the head and the field alone.

All of the server that knows torch is in this file.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from contextcaps.data.decoding import default_workers
from contextcaps.models.expected_drops import expected_drops
from contextcaps.models.parts import LogitParts
from contextcaps.models.torch_scorer import TorchScorer
from contextcaps.serving.engine import Engine, Features, Known, Scores
from contextcaps.tagging.known import known_row
from contextcaps.tagging.tagger import Tagger

__all__ = ["TorchEngine"]


class TorchEngine(Engine):
    """Computes with one model by torch.

    Args:
        name: by which clients ask for it.
        tagger: the model.
        workers: processes that share the cores.
    """

    def __init__(self, name: str, tagger: Tagger, workers: int = 1) -> None:
        super().__init__(name, tagger)
        self._scorer = cast(TorchScorer, tagger.scorer)
        if workers > 1:
            torch.set_num_threads(max(1, default_workers() // workers))

    def compute(self, pixels: Sequence[np.ndarray], known: Sequence[Known]) -> list[tuple[Features, Scores]]:
        with torch.inference_mode():
            found = self._scorer.features(np.stack(pixels))  # [B, C, H, W]
            copies = [each.clone() for each in found]  # none keeps the memory of the whole batch
            scores = self._scores(found, known)
        features = [Features(each, each.numel() * each.element_size()) for each in copies]
        return list(zip(features, scores, strict=True))

    def scores(self, features: Features, known: Known) -> Scores:
        with torch.inference_mode():
            return self._scores(features.values[None], [known])[0]

    def _scores(self, features: Tensor, known: Sequence[Known]) -> list[Scores]:
        """Return the scores of photographs of such features [B, C, H, W]."""
        rows = [torch.from_numpy(known_row(each, self.classes)) for each in known] if any(known) else []
        told = torch.stack(rows).to(features.device) if rows else None  # [B, J]
        return list(self._scorer.network.from_features(features, known=told).scores.float().cpu().numpy())

    def parts(self, features: Features, known: Known) -> LogitParts:
        (found,) = self._scorer.parts_of(features.values[None], self.row(known))
        return found

    def drops(self, features: Features, known: Known) -> np.ndarray:
        labels = torch.from_numpy(known_row(known, self.classes)).to(features.values.device)[None]  # [1, J]
        with torch.inference_mode():
            found, _ = expected_drops(self._scorer.network, features.values[None], labels)  # [1, J]
        return found[0].float().cpu().numpy()

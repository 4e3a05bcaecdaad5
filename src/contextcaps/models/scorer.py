"""What tagging asks of a network, whatever computes it: scores, and the parts of the logits."""

from typing import Any, Protocol

import numpy as np

from contextcaps.models.config import ModelConfig
from contextcaps.models.parts import LogitParts

__all__ = ["Scorer"]


class Scorer(Protocol):
    """A network ready to score images, computed by torch (`TorchScorer`) or ONNX Runtime (`OnnxScorer`)."""

    config: ModelConfig

    @property
    def device(self) -> Any:
        """The device that computes."""

    def scores(self, images: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
        """Return scores [B, J], float32, of images [B, 3, H, W] as bytes at the network's size.

        `known` are the known labels of each of them, [J]: 1 for present, 0 for absent, NaN for not known.
        """

    def parts(self, image: np.ndarray, *known: np.ndarray | None) -> list[LogitParts]:
        """Return the parts of the logits of one image [3, H, W] for each set of known labels [J]; None is none known.

        Without a set they are those with nothing known.
        """

    def require_explainable(self) -> None:
        """Refuse to explain where the logits have no exact parts, or where they cannot be had."""

    def fingerprint(self) -> bytes:
        """Return a hash of the weights."""

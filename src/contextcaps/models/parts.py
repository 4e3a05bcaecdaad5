"""The parts that one image's logits are the sum of, as arrays: what `Tagger.explain` makes its explanation of."""

import dataclasses
from collections.abc import Mapping

import numpy as np

__all__ = ["LogitParts"]


@dataclasses.dataclass(frozen=True, eq=False)
class LogitParts:
    """Scores and logits of an image, and their parts, as in `contextcaps.models.decomposition.Decomposition`."""

    scores: np.ndarray
    """[J]."""
    logits: np.ndarray
    """[J]."""
    evidence: np.ndarray
    """[J, D, H, W]."""
    branch: np.ndarray | None
    """[J, H', W']; None without a global branch."""
    messages: np.ndarray | None
    """[J', J]; None without a field."""
    constants: Mapping[str, np.ndarray]
    """Name → [J]."""
    length: np.ndarray | None
    """[J], lengths before the squash; None for a head without capsules."""
    length_capsules: np.ndarray | None
    """[J, D, H, W], the parts of the lengths."""
    length_bias: np.ndarray | None
    """[J]."""

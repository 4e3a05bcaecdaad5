"""Measure calibration: of the pairs with a score of 0.8, eight in ten should be present.

Guo et al., "On Calibration of Modern Neural Networks", 2017, https://arxiv.org/abs/1706.04599, with each pair of image
and class as one binary prediction: ECE = Σ_b |pairs_b| / |pairs| · |frequency_b − mean score_b|, over bins of equal
width. With many classes most pairs are in the lowest bin, and ECE mostly measures how well absence is predicted.
"""

import dataclasses

import torch
from torch import Tensor

from contextcaps.evaluation.metrics.decisions import ratio
from contextcaps.evaluation.metrics.streaming import CHUNK_BYTES, Array, Pairs

__all__ = ["BINS", "Calibration", "count_calibration", "per_image", "require_chances"]

BINS = 15
_TOLERANCE = 1e-3  # lengths of capsules exceed 1 by rounding, in half precision by this much


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Counts pairs in bins of equal width by their score; a leading dimension holds several countings side by side."""

    pairs: Tensor
    """[..., bins], number of pairs."""
    scores: Tensor
    """[..., bins], sum of their scores."""
    present: Tensor
    """[..., bins], how many of them are present."""
    squares: Tensor
    """[...], Σ (score − target)² over all pairs."""

    @property
    def mean_score(self) -> Tensor:
        """Return the mean score in each bin [..., bins]; 0 in an empty one."""
        return ratio(self.scores, self.pairs)

    @property
    def frequency(self) -> Tensor:
        """Return the share of the pairs in each bin that are present [..., bins]; 0 in an empty one."""
        return ratio(self.present, self.pairs)

    def summary(self) -> dict[str, Tensor]:
        """Return ECE (expected calibration error) and Brier score (mean squared error), [...]; NaN without pairs."""
        total = self.pairs.double().sum(-1)
        return {"ECE": (self.scores - self.present).abs().sum(-1) / total, "Brier": self.squares / total}


def count_calibration(
    scores: Array,
    targets: Array,
    bins: int = BINS,
    *,
    device: torch.device | str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Calibration:
    """Count all pairs in bins, piece by piece; scores are probabilities, other arguments as for `average_precision`."""
    pairs = Pairs(scores, targets, device, chunk_bytes)
    sums = torch.zeros(3, bins, dtype=torch.float64, device=pairs.device)
    squares = torch.zeros((), dtype=torch.float64, device=pairs.device)
    for _, part, truth in pairs.rows():
        binned, squared = per_image(part, truth, pairs.labelled(part), bins)
        sums += binned.sum(0)
        squares += squared.sum()
    count, total, present = sums.cpu()
    return Calibration(count, total, present, squares.cpu())


def per_image(scores: Tensor, targets: Tensor, known: Tensor, bins: int = BINS) -> tuple[Tensor, Tensor]:
    """Return each image's pairs, scores and present pairs by bin [r, 3, bins], and squared error [r]; float64.

    Args:
        scores, targets: [r, J], a piece of `Pairs`; targets as bool.
        known: [r, J], bool: the pairs that count.
        bins: number of bins.
    """
    require_chances(scores, known)
    images = len(scores)
    chances, truth = scores.double().masked_fill(~known, 0.0), targets.double()  # [r, J]
    bucket = (chances * bins).long().clamp(0, bins - 1)  # [r, J]; the last one includes 1
    place = (bucket + bins * torch.arange(images, device=scores.device)[:, None]).flatten()  # [r·J]
    parts = [
        torch.zeros(images * bins, dtype=torch.float64, device=scores.device).scatter_add_(0, place, value.flatten())
        for value in (known.double(), chances, truth)
    ]
    return torch.stack([part.view(images, bins) for part in parts], dim=1), (chances - truth).square().sum(1)


def require_chances(scores: Tensor, known: Tensor | None = None) -> None:
    """Raise for scores that are no probabilities, such as logits, among the pairs that are known (all by default)."""
    scores = scores if known is None else scores[known]
    if scores.numel():
        low, high = (float(value) for value in scores.aminmax())
        if low < -_TOLERANCE or high > 1 + _TOLERANCE:
            raise ValueError(f"scores: expected chances from 0 to 1, got {low:g} to {high:g}; logits need a sigmoid")

"""Compute average precision: how well scores rank present classes above absent ones.

AP = Σ_n (R_n − R_{n−1}) P_n over the distinct scores as thresholds, highest first, not interpolated: the definition of
scikit-learn, in which equal scores enter together. Recall changes only where a positive has the threshold's score, so
AP is the mean, over the positives, of the precision at each one's own score. That is how it is computed here.
"""

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from contextcaps.capsules.guards import require_choice
from contextcaps.evaluation.metrics.streaming import CHUNK_BYTES, Array, Pairs

__all__ = ["Average", "Curve", "Ranking", "average_precision", "micro_curve", "rank"]

Average = Literal["macro", "micro", "samples"]


def average_precision(
    scores: Array,
    targets: Array,
    average: Average | None = "macro",
    *,
    device: torch.device | str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Tensor:
    """Compute average precision piece by piece: neither memory nor device need hold more than a few classes or images.

    Args:
        scores: [n, J], a tensor or a NumPy array (memory-mapped, too), of any floating type.
        targets: [n, J], 1 where the class is present, 0 where not, `UNKNOWN` (255) where that is not known, which no
            ranking then contains; bool and integer types are fine.
        average: "macro": mean over classes that have a positive; the mAP.
            "micro": all pairs of image and class in one ranking.
            "samples": one ranking of the classes per image, mean over images that have a label.
            None: AP of each class; NaN for one without a positive.
        device: device to compute on; by default that of the scores.
        chunk_bytes: working memory, beyond one class ("macro", None), one image ("samples"), or the scores of all
            positives ("micro"), which are always held. A file of scores that is read for "macro" and does not fit into
            memory is best stored class by class: pass `stored.T`.

    Returns:
        float64, on the CPU; 0-dimensional, or [J] for None. NaN if there is no positive at all.

    >>> scores = torch.tensor([[0.9, 0.2], [0.6, 0.2], [0.3, 0.1]])
    >>> average_precision(scores, torch.tensor([[1, 0], [0, 1], [1, 0]]), average=None)  # (1 + 2/3) / 2; tied: 1/2
    tensor([0.8333, 0.5000], dtype=torch.float64)
    """
    if average is not None:
        require_choice("average", average, ("macro", "micro", "samples"))
    pairs = Pairs(scores, targets, device, chunk_bytes)
    if average == "micro":
        return micro_curve(scores, targets, device=device, chunk_bytes=chunk_bytes).average_precision()
    pieces = pairs.rows() if average == "samples" else pairs.columns()
    each = [torch.empty(0, dtype=torch.float64)]
    each += [rank(part, truth).average_precision().cpu() for _, part, truth in pieces]
    values = torch.cat(each)  # [J] or [n]
    return values if average is None else values.nanmean()


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Holds m lists of n scores in ascending order, with counts from each score upwards, equal scores included."""

    scores: Tensor
    """[m, n], ascending."""
    targets: Tensor
    """[m, n], bool, in that order."""
    order: Tensor
    """[m, n], index of each before sorting."""
    first: Tensor
    """[m, n], index of the first score that equals this one."""
    correct: Tensor
    """[m, n], positives among the scores that are at least this one."""

    @property
    def retrieved(self) -> Tensor:
        """Return the number of scores that are at least this one [m, n]."""
        return self.scores.shape[1] - self.first

    def average_precision(self) -> Tensor:
        """Return the AP of each list [m], float64; NaN for one without a positive."""
        precision = self.correct.double() / self.retrieved  # [m, n]
        return (precision * self.targets).sum(dim=1) / self.targets.sum(dim=1)  # [m], 0 / 0 is NaN


def rank(scores: Tensor, targets: Tensor) -> Ranking:
    """Sort each of m lists: scores [m, n], targets [m, n] as bool."""
    values, order = scores.sort(dim=1)
    truth = targets.gather(1, order)  # [m, n]
    first = torch.searchsorted(values, values)  # [m, n]
    total = truth.cumsum(dim=1)  # [m, n]
    before = (total - truth.long()).gather(1, first)  # [m, n], positives below this score
    correct = total[:, -1:] - before  # [m, n]
    return Ranking(values, truth, order, first, correct)


@dataclasses.dataclass(frozen=True)
class Curve:
    """Holds precision and recall of one ranking of all pairs, at the scores where recall changes."""

    thresholds: Tensor
    """[u], the distinct scores of positives, ascending."""
    positives: Tensor
    """[u], positives with exactly that score."""
    retrieved: Tensor
    """[u], pairs with at least that score."""

    @property
    def precision(self) -> Tensor:
        """Return the precision from each threshold up [u], float64."""
        return _from_above(self.positives).double() / self.retrieved

    @property
    def recall(self) -> Tensor:
        """Return the recall from each threshold up [u], float64."""
        return _from_above(self.positives).double() / self.positives.sum()

    def average_precision(self) -> Tensor:
        """Return the AP, 0-dimensional float64; NaN without a positive."""
        return (self.precision * self.positives).sum() / self.positives.sum()


def micro_curve(
    scores: Array, targets: Array, *, device: torch.device | str | None = None, chunk_bytes: int = CHUNK_BYTES
) -> Curve:
    """Compute the exact precision-recall curve over all pairs, sorting only the positives.

    Arguments as for `average_precision`; the result is on the CPU. Its length is the number of distinct scores that
    positives have.
    """
    pairs = Pairs(scores, targets, device, chunk_bytes)
    found = [part[truth] for _, part, truth in pairs.rows()]
    values, positives = torch.cat([torch.empty(0, device=pairs.device), *found]).unique(return_counts=True)  # [u]
    counts = torch.zeros(len(values) + 1, dtype=torch.int64, device=pairs.device)  # [1 + u], pairs from score to score
    for _, part, _ in pairs.rows():
        counts += torch.searchsorted(values, part.flatten(), right=True).bincount(minlength=len(counts))
    return Curve(values.cpu(), positives.cpu(), _from_above(counts[1:]).cpu())


def _from_above(counts: Tensor) -> Tensor:
    """Sum this and all later entries along the first dimension."""
    return counts.flip(0).cumsum(0).flip(0)

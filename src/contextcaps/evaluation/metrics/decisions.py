"""Compute precision, recall and F1 of decisions: a class is predicted from its threshold on.

With true_j, predicted_j and present_j the images in which class j is predicted and present, predicted, and present:

    CP = mean_j true_j / predicted_j      CR = mean_j true_j / present_j     CF1 = 2 CP CR / (CP + CR)
    OP = Σ_j true_j / Σ_j predicted_j     OR = Σ_j true_j / Σ_j present_j    OF1 = 2 OP OR / (OP + OR)

as the literature on multi-label recognition reports them (ML-GCN, ASL, ML-Decoder). The precision of a class that is
never predicted counts as 0. CF1 is the harmonic mean of two means, not the mean of the classes' F1; that one is
`macro_F1`, as scikit-learn's f1_score(average="macro").

Classes without a positive are left out of CP, CR and macro F1, as they are of mAP: all three would be 0 for them
whatever the model does. Predicting them wrongly still lowers OP.
"""

import dataclasses

import torch
from torch import Tensor

from contextcaps.evaluation.metrics.streaming import CHUNK_BYTES, Array, Pairs

__all__ = ["Decisions", "count_decisions", "ratio", "threshold_tensor"]


@dataclasses.dataclass(frozen=True)
class Decisions:
    """Holds counts of each class, and computes metrics; a leading dimension holds several countings side by side."""

    correct: Tensor
    """[..., J], images in which the class is present and predicted."""
    predicted: Tensor
    """[..., J], images in which it is predicted."""
    present: Tensor
    """[..., J], images in which it is present."""

    @property
    def precision(self) -> Tensor:
        """Return the precision of each class [..., J]; 0 for one that is never predicted."""
        return ratio(self.correct, self.predicted)

    @property
    def recall(self) -> Tensor:
        """Return the recall of each class [..., J]; 0 for one that is never present."""
        return ratio(self.correct, self.present)

    @property
    def f1(self) -> Tensor:
        """Return the F1 of each class [..., J]."""
        return ratio(2 * self.correct, self.predicted + self.present)

    def summary(self) -> dict[str, Tensor]:
        """Return CP, CR, CF1, OP, OR, OF1 and macro_F1, each [...]; NaN where no class has a positive."""
        class_precision, class_recall, macro_f1 = map(self._mean, (self.precision, self.recall, self.f1))
        correct, predicted, present = (
            counts.double().sum(-1) for counts in (self.correct, self.predicted, self.present)
        )
        nothing = torch.where(present > 0, 0.0, torch.nan)
        return {
            "CP": class_precision,
            "CR": class_recall,
            "CF1": ratio(2 * class_precision * class_recall, class_precision + class_recall) + nothing,
            "OP": ratio(correct, predicted) + nothing,
            "OR": ratio(correct, present) + nothing,
            "OF1": ratio(2 * correct, predicted + present) + nothing,
            "macro_F1": macro_f1,
        }

    def _mean(self, values: Tensor) -> Tensor:
        """Return the mean over the classes that have a positive."""
        counted = (self.present > 0).double()
        return (values * counted).sum(-1) / counted.sum(-1)


def count_decisions(
    scores: Array,
    targets: Array,
    thresholds: float | Array = 0.5,
    *,
    device: torch.device | str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Decisions:
    """Decide and count, piece by piece.

    Args:
        scores, targets: [n, J], as for `average_precision`.
        thresholds: one for all, or [J]; a class is predicted from its threshold on.
        device, chunk_bytes: as for `average_precision`.

    >>> counted = count_decisions(torch.tensor([[0.9, 0.2], [0.6, 0.5]]), torch.tensor([[1, 0], [0, 1]]))
    >>> counted.summary()["CP"], counted.summary()["OP"]  # (1/2 + 1) / 2, 2/3
    (tensor(0.7500, dtype=torch.float64), tensor(0.6667, dtype=torch.float64))
    """
    pairs = Pairs(scores, targets, device, chunk_bytes)
    limits = threshold_tensor(thresholds, pairs.classes).to(pairs.device)
    sums = torch.zeros(3, pairs.classes, dtype=torch.int64, device=pairs.device)
    for _, part, truth in pairs.rows():
        predicted = part >= limits  # [r, J]
        sums += torch.stack([(predicted & truth).sum(0), predicted.sum(0), truth.sum(0)])
    return Decisions(*sums.cpu())


def threshold_tensor(thresholds: float | Array, classes: int) -> Tensor:
    """Return thresholds as [J], float64: more digits than any score, so that a comparison is exact."""
    limits = torch.as_tensor(thresholds, dtype=torch.float64).cpu()
    if limits.shape not in ((), (classes,)) or not bool(limits.isfinite().all()):
        raise ValueError(f"thresholds: expected one number or [J={classes}], all finite, got {list(limits.shape)}")
    return limits.expand(classes)


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Divide part by whole in float64; return 0 where the whole is 0."""
    return torch.where(whole > 0, part.double() / whole.double().clamp_min(torch.finfo(torch.float64).tiny), 0.0)

"""Tune the threshold of each class: the score from which it is predicted.

The best threshold of a class on few validation positives is mostly chance: fitted to one or two, it may be 0.0017. So
the threshold of class j with n_j positives is drawn to one threshold for all classes, as if that had been best on k
further positives:

    t_j = max(t / 2, (n_j · best_j + k · t) / (n_j + k))

best_j has the highest F1 of class j, t the highest CF1 + OF1 of one threshold for all. k is chosen by cross-validation
inside the validation images; k = ∞ leaves t for all classes.
"""

import dataclasses
import math

import torch
from torch import Tensor

from contextcaps.evaluation.metrics.calibration import require_chances
from contextcaps.evaluation.metrics.decisions import Decisions, ratio
from contextcaps.evaluation.metrics.streaming import CHUNK_BYTES, Array, Pairs

__all__ = ["LEVELS", "TunedThresholds", "count_levels", "tune_thresholds"]

LEVELS = 512
"""Thresholds are multiples of 1 / LEVELS: exact in single precision, and finer than validation images can tell."""

PSEUDO_POSITIVES = (math.inf, 256.0, 128.0, 64.0, 32.0, 16.0, 8.0, 4.0)
"""The k that cross-validation chooses from; of equally good ones the first."""

_FOLDS = 5
_FALLBACK = LEVELS // 2  # the shared threshold without any positive: 0.5


@dataclasses.dataclass(frozen=True)
class TunedThresholds:
    """Holds a threshold for each class, and how they came about."""

    each: Tensor
    """[J], float64, multiples of 1 / LEVELS, all above 0 and below 1."""
    shared: float
    """The best threshold for all classes."""
    floor: float
    """Half of it; no threshold is below."""
    pseudo_positives: float
    """The k that was chosen."""


def tune_thresholds(
    scores: Array,
    targets: Array,
    pseudo_positives: float | None = None,
    *,
    device: torch.device | str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> TunedThresholds:
    """Find thresholds that hold on other images, from validation data.

    Args:
        scores: [n, J], from 0 to 1; float16, bfloat16, float32 or float64.
        targets: [n, J], 0 or 1, or `UNKNOWN`.
        pseudo_positives: k; by default the one with the highest CF1 + OF1 in a cross-validation over five parts of the
            images.
        device, chunk_bytes: as for `average_precision`.

    >>> scores, targets = torch.tensor([[0.25], [0.5], [0.75]]), torch.tensor([[0], [1], [1]])
    >>> tune_thresholds(scores, targets).each  # the highest threshold of those with the best F1
    tensor([0.5000], dtype=torch.float64)
    """
    retrieved, correct = (_from_above(counts) for counts in count_levels(scores, targets, _FOLDS, device, chunk_bytes))
    k = _choose(retrieved, correct) if pseudo_positives is None else pseudo_positives
    shared, best = _fit(retrieved.sum(0), correct.sum(0))
    levels = _shrunk(best, correct.sum(0)[:, 0], shared, k)  # [J]
    return TunedThresholds(levels.double() / LEVELS, shared / LEVELS, _floor(shared) / LEVELS, k)


def count_levels(
    scores: Array,
    targets: Array,
    folds: int = 1,
    device: torch.device | str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> tuple[Tensor, Tensor]:
    """Count pairs and present pairs [folds, J, LEVELS] by fold, class and level, ⌊score · LEVELS⌋, on the CPU.

    Which fold an image is in is drawn with a fixed seed.
    """
    pairs = Pairs(scores, targets, device, chunk_bytes)
    fold = torch.randperm(pairs.images, generator=torch.Generator().manual_seed(0)) % folds  # [n]
    counts = torch.zeros(2, folds * pairs.classes * LEVELS, dtype=torch.int64, device=pairs.device)
    columns = torch.arange(pairs.classes, device=pairs.device)
    for rows, part, truth in pairs.rows():
        known = pairs.labelled(part)  # [r, J]
        require_chances(part, known)
        level = (part.masked_fill(~known, 0) * LEVELS).long().clamp(0, LEVELS - 1)  # [r, J]
        place = (fold[rows, None].to(pairs.device) * pairs.classes + columns) * LEVELS + level  # [r, J]
        for count, which in zip(counts, (known, truth), strict=True):
            count += place[which].bincount(minlength=count.numel())
    retrieved, correct = counts.cpu().view(2, folds, pairs.classes, LEVELS)
    return retrieved, correct


def _choose(retrieved: Tensor, correct: Tensor) -> float:
    """Choose k by cross-validation; counts from each level up [folds, J, LEVELS]."""
    every, every_correct = retrieved.sum(0), correct.sum(0)
    found = torch.zeros(len(PSEUDO_POSITIVES), 2, len(every), dtype=torch.int64)  # [k, 2, J], retrieved and correct
    for left_out, left_out_correct in zip(retrieved, correct, strict=True):
        rest = every_correct - left_out_correct  # [J, LEVELS]
        shared, best = _fit(every - left_out, rest)
        for row, k in zip(found, PSEUDO_POSITIVES, strict=True):
            level = _shrunk(best, rest[:, 0], shared, k)[:, None]  # [J, 1]
            row += torch.stack([left_out.gather(1, level), left_out_correct.gather(1, level)]).squeeze(2)
    present = every_correct[:, 0].expand(len(found), -1)  # [k, J]
    figures = Decisions(found[:, 1], found[:, 0], present).summary()
    return PSEUDO_POSITIVES[int((figures["CF1"] + figures["OF1"]).nan_to_num(0).argmax())]


def _fit(retrieved: Tensor, correct: Tensor) -> tuple[int, Tensor]:
    """Find the best level for all classes, and that of each class [J], from counts from each level up [J, LEVELS]."""
    present = correct[:, :1]  # [J, 1]
    figures = Decisions(correct.T, retrieved.T, present.T.expand(LEVELS, -1)).summary()
    shared = _highest_best((figures["CF1"] + figures["OF1"])[None])
    f1 = ratio(2 * correct, retrieved + present)  # [J, LEVELS]; equal fractions are equal here
    return int(shared) if bool(present.any()) else _FALLBACK, _highest_best(f1)


def _highest_best(values: Tensor) -> Tensor:
    """Return the level above 0 with the highest value, and of several the highest level; values [m, LEVELS] → [m]."""
    return LEVELS - 1 - values[:, 1:].flip(1).argmax(1)


def _shrunk(best: Tensor, present: Tensor, shared: int, k: float) -> Tensor:
    """Draw the classes' best levels [J] to the shared one, the more the fewer positives [J] there are."""
    if math.isinf(k):
        return torch.full_like(best, shared)
    weight = ratio(present, present + k)  # [J]
    return (weight * best + (1 - weight) * shared).round().long().clamp_min(_floor(shared))


def _floor(shared: int) -> int:
    """Return half of the shared level, rounded up."""
    return (shared + 1) // 2


def _from_above(counts: Tensor) -> Tensor:
    """Sum counts [..., LEVELS] over this level and all higher ones."""
    return counts.flip(-1).cumsum(-1).flip(-1)

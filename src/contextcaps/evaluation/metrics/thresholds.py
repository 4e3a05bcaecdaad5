"""Tune the threshold of each class: the score from which it is predicted."""

import torch
from torch import Tensor

from contextcaps.evaluation.metrics.calibration import require_chances
from contextcaps.evaluation.metrics.ranking import rank
from contextcaps.evaluation.metrics.streaming import CHUNK_BYTES, Array, Pairs

__all__ = ["tune_thresholds"]

_FALLBACK = 0.5


def tune_thresholds(
    scores: Array,
    targets: Array,
    *,
    device: torch.device | str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Tensor:
    """Find the threshold of each class that gives it the highest F1, on validation data.

    Every division of the images that a threshold can make is tried. The threshold is halfway between the lowest score
    above it and the highest below (or 0). Of several with the same F1 it is the highest: fewer and surer tags. A class
    without a positive gets 0.5 or, if a score reaches that, a threshold halfway between its highest score and 1.

    Args:
        scores: [n, J], from 0 to 1; float16, bfloat16, float32 or float64.
        targets: [n, J], 0 or 1, or `UNKNOWN`.
        device, chunk_bytes: as for `average_precision`.

    Returns:
        [J], float64, all strictly between 0 and 1. Each can be written in the scores' own type (float32 for half
        precision), so that a comparison in either gives the same decision.

    >>> tune_thresholds(torch.tensor([[0.25], [0.5], [0.75]]), torch.tensor([[0], [1], [1]]))
    tensor([0.3750], dtype=torch.float64)
    """
    pairs = Pairs(scores, targets, device, chunk_bytes)
    if not pairs.images:
        return torch.full((pairs.classes,), _FALLBACK, dtype=torch.float64)
    found = [torch.empty(0, dtype=torch.float64)]
    for _, part, truth in pairs.columns():
        require_chances(part, pairs.known(part))
        found.append(_best(part, truth).double().cpu())
    return torch.cat(found)


def _best(scores: Tensor, targets: Tensor) -> Tensor:
    """Find the thresholds [c] of classes with scores [c, n], in the scores' type."""
    ranking = rank(scores, targets)
    values = ranking.scores  # [c, n]
    below = torch.cat([torch.zeros_like(values[:, :1]), values[:, :-1]], dim=1)  # [c, n]
    below = below.masked_fill(below == -torch.inf, 0.0)  # a pair whose label is unknown
    middle = below + (values - below) / 2
    middle = torch.where(middle > below, middle, values)  # [c, n]: between neighbours in their type there is no number
    place = torch.arange(values.shape[1], device=values.device)
    allowed = (ranking.first == place) & (middle > 0) & (middle < 1)  # [c, n], below a run of equal scores, not in it
    present = targets.sum(1, keepdim=True)  # [c, 1]
    f1 = 2 * ranking.correct.double() / (ranking.retrieved + present)  # [c, n]; equal fractions are equal here
    f1 = torch.where(allowed, f1, -1.0)
    best = values.shape[1] - 1 - f1.flip(1).argmax(1, keepdim=True)  # [c, 1], the highest of equals
    useful = f1.gather(1, best).squeeze(1) > 0  # [c]
    highest = values[:, -1]  # [c]
    below_one = torch.nextafter(torch.ones_like(highest), torch.zeros_like(highest))
    beyond = torch.where(highest < _FALLBACK, _FALLBACK, torch.minimum((highest + 1) / 2, below_one))  # [c]
    return torch.where(useful, middle.gather(1, best).squeeze(1), beyond)

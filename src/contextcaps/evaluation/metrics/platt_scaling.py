"""Fit Platt scaling: one scale a > 0 and one shift b of all logits, so that sigmoid(a · logit + b) is calibrated.

a and b minimise the cross-entropy over all known pairs of image and class,

    Σ log(1 + exp(−y · (a · logit + b))) + ((a − 1)² + b²) / 2,   y = 1 for a present class, −1 for an absent one,

which is convex. The last term weighs about as much as one pair does; it sees to it that there is one minimum whatever
the data, and without pairs leaves the logits as they are.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from contextcaps.evaluation.metrics.streaming import CHUNK_BYTES, Array, Pairs

__all__ = ["SCALES", "fit_platt_scaling"]

SCALES = (0.05, 20.0)
"""The least and the greatest scale: one that is not above 0 would turn rankings around."""

_STEPS = 100
_CONVERGED = 1e-13  # what a Newton step gains, beside the loss: below it, rounding hides whether a step gains at all


def fit_platt_scaling(
    logits: Array,
    targets: Array,
    *,
    device: torch.device | str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> tuple[float, float]:
    """Fit the scale and the shift by Newton's method, in float64.

    Args:
        logits: [n, J], finite.
        targets: [n, J], 0 or 1, or `UNKNOWN`.
        device, chunk_bytes: as for `average_precision`.

    >>> often = torch.arange(1000) % 4 > 0  # three quarters, where sigmoid(2) is 88 %
    >>> scale, shift = fit_platt_scaling(torch.tensor([[-2.0, 2.0]]).repeat(1000, 1), torch.stack([~often, often], 1))
    >>> print(f"{scale:.2f} {abs(shift):.2f}")
    0.55 0.00
    """
    pairs = Pairs(logits, targets, device, chunk_bytes)
    found = _minimise(pairs, torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([True, True]))
    bounded = found.clone()
    bounded[0].clamp_(*SCALES)
    if bounded[0] != found[0]:  # the loss is convex, so the best scale between the bounds is the nearer bound
        found = _minimise(pairs, bounded, torch.tensor([False, True]))
    scale, shift = found.tolist()
    return scale, shift


def _minimise(pairs: Pairs, start: Tensor, is_free: Tensor) -> Tensor:
    """Return the scale and the shift [2] with the lowest loss, where those that are not free stay as they start."""
    point = start
    loss, slope, curvature = _loss(pairs, point)
    for _ in range(_STEPS):
        step = torch.zeros_like(point)
        step[is_free] = torch.linalg.solve(curvature[is_free][:, is_free], -slope[is_free])
        decrease = float(-slope @ step)  # by as much as this, or half, if the loss were quadratic
        if decrease <= _CONVERGED * (1 + loss):
            return point + step  # so near the optimum, each step squares the distance
        length = 1.0
        while length > 1e-10:
            trial = point + length * step
            found = _loss(pairs, trial)
            if found[0] <= loss - 1e-4 * length * decrease:
                break
            length /= 2
        else:
            break  # nothing is left but rounding
        point, (loss, slope, curvature) = trial, found
    return point


def _loss(pairs: Pairs, point: Tensor) -> tuple[float, Tensor, Tensor]:
    """Return the loss at a scale and a shift [2], its slope [2] and its second derivatives [2, 2]."""
    move = point - point.new_tensor([1.0, 0.0])  # [2]
    loss, slope, curvature = float(move @ move) / 2, move, torch.eye(2, dtype=torch.float64)
    scale, shift = point.tolist()
    for _, part, truth in pairs.rows():
        known = pairs.labelled(part)  # [r, J]
        x, is_present = part[known].double(), truth[known]  # [p]
        mapped = scale * x + shift  # [p]
        loss += float(softplus(torch.where(is_present, -mapped, mapped)).sum())
        chances = torch.sigmoid(mapped)  # [p]
        error, weight = chances - is_present.double(), chances * (1 - chances)  # [p]
        both = torch.stack([x, torch.ones_like(x)])  # [2, p]
        slope = slope + (both @ error).cpu()
        curvature = curvature + ((both * weight) @ both.T).cpu()
    return loss, slope, curvature

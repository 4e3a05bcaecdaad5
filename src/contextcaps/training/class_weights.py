"""Weights for the classes in the loss, so that rare ones are not lost among the common."""

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from contextcaps.capsules.guards import require_choice, require_count

__all__ = ["ClassWeights", "class_weights"]

ClassWeights = Literal["none", "inverse", "sqrt", "effective"]


def class_weights(
    counts: Sequence[int] | Tensor, total: int, kind: ClassWeights = "none", cap: float = 20.0, beta: float = 0.999
) -> Tensor:
    """Return a weight for each class, [J] float32, from how many training images show it.

    With n_j images of class j, before scaling:

    - "inverse": 1 / n_j, every class counts alike;
    - "sqrt": 1 / √n_j, half the way there;
    - "effective": (1 − β) / (1 − β^n_j), by the effective number of images (Cui et al., "Class-Balanced Loss Based on
      Effective Number of Samples", 2019, https://arxiv.org/abs/1901.05555): as "inverse" while n_j is well below
      1 / (1 − β), and alike for all classes well above it;
    - "none": 1 for all.

    They are scaled so that the mean over all positives, Σ_j n_j · w_j / Σ_j n_j, is 1: a present class costs about the
    same whichever it is until something is learnt, so the loss keeps its size and a learning rate found without weights
    still fits. With a mean over classes of 1 it would shrink, by a lot where a few classes have most positives.

    No weight is above `cap`, so a class with one image does not rule; what that takes away the others get, and the mean
    stays 1. A class without a positive has weight 1, as without weights: there is nothing of it to learn but that it
    is absent, and the largest weight would make just that the most urgent.

    Args:
        counts: [J], images that show each class.
        total: images.
        kind: which weights.
        cap: the largest weight, at least 1.
        beta: β, from 0 to below 1, of "effective".

    >>> class_weights([90, 10, 0], total=100, kind="inverse")
    tensor([0.5556, 5.0000, 1.0000])
    """
    require_choice("kind", kind, get_args(ClassWeights))
    require_count("total", total)
    numbers = [int(count) for count in counts]
    if not numbers:
        raise ValueError("counts: expected a count for each class, got none")
    for index, count in enumerate(numbers):
        if not 0 <= count <= total:
            raise ValueError(f"counts: expected whole numbers from 0 to {total} (total), got {count} for class {index}")
    if not (math.isfinite(cap) and cap >= 1):
        raise ValueError(f"cap: expected a number of at least 1, the mean weight, got {cap}")
    if not 0 <= beta < 1:
        raise ValueError(f"beta: expected a number from 0 to below 1, got {beta}")
    positives = torch.tensor(numbers, dtype=torch.float64)  # [J]
    weights = torch.ones_like(positives)  # [J]
    shown = positives > 0  # [J]
    if kind != "none" and shown.any():
        weights[shown] = _scale(_raw(positives[shown], kind, beta), positives[shown], cap)
    return weights.float()


def _raw(positives: Tensor, kind: ClassWeights, beta: float) -> Tensor:
    """Return the weights [J] of classes with positives, in any scale."""
    if kind == "inverse":
        return 1 / positives
    if kind == "sqrt":
        return positives.rsqrt()
    # 1 − β^n without the cancellation of nearly equal numbers.
    return (1 - beta) / -torch.expm1(positives * math.log(beta)) if beta > 0 else torch.ones_like(positives)


def _scale(raw: Tensor, positives: Tensor, cap: float) -> Tensor:
    """Return min(c · raw, cap) with the c for which the mean over positives is 1; all [J]."""
    capped = torch.zeros_like(raw, dtype=torch.bool)  # [J]
    while True:
        free = ~capped
        rest = positives.sum() - cap * positives[capped].sum()
        weights = torch.where(capped, cap, raw * (rest / (positives[free] * raw[free]).sum()))  # [J]
        # More than the cap allows for is handed to the others, which may lift one of them above it in turn. The common
        # classes stay free, but for rounding: if all were above the cap, so would be the mean.
        above = free & (weights > cap * (1 + 1e-9))  # [J]
        if not above.any():
            return weights.clamp_max(cap)
        capped |= above

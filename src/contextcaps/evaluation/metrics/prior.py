"""Predict the training frequency of each class for every image: the constant-prior baseline."""

import torch
from torch import Tensor

from contextcaps.evaluation.metrics.streaming import Array

__all__ = ["prior_scores", "prior_thresholds"]


def prior_scores(frequencies: Array | tuple[float, ...] | list[float], images: int) -> Tensor:
    """Return the training frequency of each class for each of n images [n, J], float32, in the memory of one."""
    return _frequencies(frequencies).expand(images, -1)


def prior_thresholds(frequencies: Array | tuple[float, ...] | list[float]) -> Tensor:
    """Return the thresholds [J] that tuning gives a constant score: a class that occurs is always predicted."""
    chances = _frequencies(frequencies)
    return torch.where(chances > 0, chances / 2, 0.5)


def _frequencies(frequencies: Array | tuple[float, ...] | list[float]) -> Tensor:
    chances = torch.as_tensor(frequencies, dtype=torch.float32).cpu()
    if chances.ndim != 1 or not bool(((chances >= 0) & (chances <= 1)).all()):
        raise ValueError("frequencies: expected one share from 0 to 1 for each class [J]")
    return chances

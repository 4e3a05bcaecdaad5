"""Intervals over seeds: Student's t, without a dependency, and when a curve has reached its final value."""

import math
from collections.abc import Sequence

import numpy as np

from contextcaps.evaluation.report.evaluation import Estimate

__all__ = ["epoch_within", "mean_interval", "paired_interval", "rank_correlation", "student_quantile"]


def student_quantile(degrees: int, level: float = 0.95) -> float:
    """Return the t for which |T| ≤ t has the probability `level`, T being Student-distributed.

    For whole degrees of freedom the distribution is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4), which is
    inverted by halving.

    >>> round(student_quantile(1), 3), round(student_quantile(4), 3)
    (12.706, 2.776)
    """
    if degrees < 1:
        raise ValueError(f"degrees: expected a whole number of at least 1, got {degrees}")
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number between 0 and 1, got {level}")
    low, high = 0.0, 1.0
    while _student_probability(high, degrees) < level:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _student_probability(middle, degrees) < level else (low, middle)
    return (low + high) / 2


def _student_probability(t: float, degrees: int) -> float:
    """Return the probability that |T| ≤ t."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term, total = (cosine, cosine) if odd else (1.0, 1.0)
    if degrees == 1:
        return 2 * angle / math.pi
    for number in range(2 if odd else 1, degrees - 1, 2):
        term *= number / (number + 1) * cosine**2
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def mean_interval(values: Sequence[float], level: float = 0.95) -> Estimate:
    """Return the mean and its interval, mean ± t s / √n; one value alone has none (NaN)."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return Estimate(math.nan, math.nan, math.nan)
    count, mean = len(known), math.fsum(known) / len(known)
    if count == 1:
        return Estimate(mean, math.nan, math.nan)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (count - 1))
    half = student_quantile(count - 1, level) * deviation / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half)


def paired_interval(values: Sequence[float], baseline: Sequence[float], level: float = 0.95) -> Estimate:
    """Return the mean of value − baseline over pairs, such as runs with the same seed, and its interval."""
    return mean_interval([value - other for value, other in zip(values, baseline, strict=True)], level)


def epoch_within(values: Sequence[float], share: float = 0.01) -> int | None:
    """Return the first epoch, from 1, with at least (1 − share) of the last value; None where that says nothing."""
    if not values or not math.isfinite(values[-1]) or values[-1] <= 0:
        return None
    return next(epoch for epoch, value in enumerate(values, 1) if value >= (1 - share) * values[-1])


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation, equal values sharing their rank; NaN where one of them never changes."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return math.nan
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Return the rank of each value, [n]; the mean of their ranks for equal ones."""
    _, places, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[places]

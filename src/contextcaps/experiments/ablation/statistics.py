"""Intervals over seeds: Student's t, without a dependency, and when a curve has reached its final value.

Runs with the same seed have hardly anything in common, so differences are not paired by seed: docs/decisions/metric.md.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from contextcaps.evaluation.report.evaluation import Estimate

__all__ = [
    "Spread",
    "difference_interval",
    "epoch_within",
    "mean_interval",
    "pool_deviations",
    "rank_correlation",
    "student_quantile",
]

_STANDS_OUT = 0.01
"""A deviation is not pooled when one so large among as many as there are has a smaller probability than this."""


@functools.lru_cache(maxsize=4096)
def student_quantile(degrees: float, level: float = 0.95) -> float:
    """Return the t for which |T| ≤ t has the probability `level`, T being Student-distributed; found by halving.

    >>> round(student_quantile(1), 3), round(student_quantile(4), 3)
    (12.706, 2.776)
    """
    if not degrees >= 1:
        raise ValueError(f"degrees: expected a number of at least 1, got {degrees}")
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number between 0 and 1, got {level}")
    low, high = 0.0, 1.0
    while _student_beyond(high, degrees) > 1 - level:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _student_beyond(middle, degrees) > 1 - level else (low, middle)
    return (low + high) / 2


def _student_beyond(t: float, degrees: float) -> float:
    """Return the probability that |T| > t."""
    return _beta_share(degrees / (degrees + t * t), degrees / 2, 0.5)


def _ratio_beyond(ratio: float, degrees: int, others: int) -> float:
    """Return the probability that a ratio of two variances of equal populations is above `ratio` (the F test)."""
    return _beta_share(others / (others + degrees * ratio), others / 2, degrees / 2)


def _beta_share(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction of the other side converges fast
        return 1 - _beta_share(1 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    value, terms = 1.0, 20 + int(2 * max(a, b) ** 0.5)
    for m in range(terms, 0, -1):  # from the innermost term outwards
        value = 1 + m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)) / value
        value = 1 - (a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1)) / value
    return math.exp(scale) / (a * value)


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


class Spread(NamedTuple):
    """The deviation from seed to seed that several models share."""

    deviation: float
    degrees: int
    """Degrees of freedom that it was estimated with."""
    models: frozenset[str]
    """Names of the models that it was estimated from."""


def pool_deviations(groups: Mapping[str, Sequence[float]]) -> Spread | None:
    """Return the deviation within groups, pooled over them; None if no group has two values.

    A group whose variance stands out above that of the others (an F test at 1 %, times the number of groups) is left
    out, the largest first: one training that went wrong would hide what all the others show.

    Args:
        groups: model → its values, one for each seed.
    """
    parts = {name: (_squares(values), len(values) - 1) for name, values in groups.items() if len(values) > 1}
    while len(parts) > 1:
        name = max(parts, key=lambda each: parts[each][0] / parts[each][1])
        squares, degrees = parts[name]
        others = [part for each, part in parts.items() if each != name]
        rest, rest_degrees = math.fsum(part[0] for part in others), sum(part[1] for part in others)
        ratio = squares / degrees / (rest / rest_degrees) if rest > 0 else math.inf if squares > 0 else 0.0
        if len(parts) * _ratio_beyond(ratio, degrees, rest_degrees) >= _STANDS_OUT:
            break
        del parts[name]
    if not parts:
        return None
    degrees = sum(part[1] for part in parts.values())
    return Spread(math.sqrt(math.fsum(part[0] for part in parts.values()) / degrees), degrees, frozenset(parts))


def difference_interval(
    values: Sequence[float], others: Sequence[float], spread: Spread | None = None, level: float = 0.95
) -> Estimate:
    """Return the difference of two means and its interval; with fewer than two values on a side it has none (NaN).

    Args:
        values: one for each seed.
        others: those of the model that is compared with.
        spread: the deviation that both share with other models; None to take their own (Welch's interval).
        level: how often the interval should hold the true difference.
    """
    difference = math.fsum(values) / len(values) - math.fsum(others) / len(others)
    if min(len(values), len(others)) < 2 or not math.isfinite(difference):
        return Estimate(difference, math.nan, math.nan)
    if spread is not None:
        error, degrees = spread.deviation * math.sqrt(1 / len(values) + 1 / len(others)), float(spread.degrees)
    else:
        parts = [_squares(each) / (len(each) - 1) / len(each) for each in (values, others)]
        error = math.sqrt(math.fsum(parts))
        below = math.fsum(part**2 / (len(each) - 1) for part, each in zip(parts, (values, others), strict=True))
        degrees = math.fsum(parts) ** 2 / below if below > 0 else 1.0  # without deviations the interval has no width
    half = student_quantile(degrees, level) * error
    return Estimate(difference, difference - half, difference + half)


def _squares(values: Sequence[float]) -> float:
    """Return the sum of squared deviations from the mean."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)


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

"""Intervals over seeds, against SciPy and plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextcaps.experiments.ablation.statistics import (
    epoch_within,
    mean_interval,
    paired_interval,
    rank_correlation,
    student_quantile,
)

stats = pytest.importorskip("scipy.stats")
values = st.lists(st.floats(0, 1), min_size=2, max_size=12)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 30, 99, 1000])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_quantiles_are_those_of_scipy(degrees: int, level: float) -> None:
    assert student_quantile(degrees, level) == pytest.approx(stats.t.ppf((1 + level) / 2, degrees), rel=1e-9)


def test_quantiles_of_the_textbook() -> None:
    """Tables that every statistics book has."""
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 29: 2.045}
    assert {degrees: round(student_quantile(degrees), 3) for degrees in table} == table


def test_wrong_quantiles_are_refused() -> None:
    with pytest.raises(ValueError, match="degrees: expected a whole number of at least 1, got 0"):
        student_quantile(0)
    with pytest.raises(ValueError, match="level"):
        student_quantile(3, 1.0)


@given(values)
def test_the_interval_of_a_mean(given_values: list[float]) -> None:
    found = mean_interval(given_values)
    assert found.value == pytest.approx(np.mean(given_values))
    error = np.std(given_values, ddof=1) / math.sqrt(len(given_values))
    half = stats.t.ppf(0.975, len(given_values) - 1) * error
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), abs=1e-9)


@given(values, st.floats(-1, 1))
def test_a_constant_difference_has_no_width(given_values: list[float], shift: float) -> None:
    found = paired_interval([value + shift for value in given_values], given_values)
    assert (found.value, found.low, found.high) == pytest.approx((shift,) * 3, abs=1e-9)


def test_one_value_has_no_interval() -> None:
    found = mean_interval([0.25])
    assert found.value == 0.25
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert math.isnan(mean_interval([math.nan]).value)
    assert mean_interval([0.2, math.nan, 0.4]) == mean_interval([0.2, 0.4])


@pytest.mark.parametrize(
    ("curve", "epoch"),
    [
        ([0.1, 0.5, 0.99, 1.0], 3),
        ([1.0], 1),
        ([0.98, 0.99, 1.0], 2),
        ([0.9, 0.2, 0.3], 1),
        ([], None),
        ([0.0, 0.0], None),
    ],
)
def test_when_a_curve_has_arrived(curve: list[float], epoch: int | None) -> None:
    assert epoch_within(curve) == epoch


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=20))
def test_rank_correlation_is_spearmans(pairs: list[tuple[int, int]]) -> None:
    first, second = zip(*pairs, strict=True)
    found = rank_correlation(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-9)

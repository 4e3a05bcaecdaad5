"""Intervals over seeds, against SciPy and plain loops."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextcaps.experiments.ablation.statistics import (
    difference_interval,
    epoch_within,
    mean_interval,
    pool_deviations,
    rank_correlation,
    student_quantile,
)

stats = pytest.importorskip("scipy.stats")
values = st.lists(st.floats(0, 1), min_size=2, max_size=12)


@pytest.mark.parametrize("degrees", [1, 1.3, 2, 2.71, 3, 4, 5, 9, 30, 99.5, 1000])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_quantiles_are_those_of_scipy(degrees: float, level: float) -> None:
    assert student_quantile(degrees, level) == pytest.approx(stats.t.ppf((1 + level) / 2, degrees), rel=1e-8)


def test_quantiles_of_the_textbook() -> None:
    """Tables that every statistics book has."""
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 29: 2.045}
    assert {degrees: round(student_quantile(degrees), 3) for degrees in table} == table


def test_wrong_quantiles_are_refused() -> None:
    with pytest.raises(ValueError, match="degrees: expected a number of at least 1, got 0"):
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


@given(values, values)
def test_the_interval_of_a_difference_is_welchs(first: list[float], second: list[float]) -> None:
    found = difference_interval(first, second)
    assert found.value == pytest.approx(np.mean(first) - np.mean(second), abs=1e-12)
    if min(np.std(first), np.std(second)) > 1e-6:
        expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-9)


@given(values, values)
def test_the_pooled_interval_of_two_is_students(first: list[float], second: list[float]) -> None:
    spread = pool_deviations({"first": first, "second": second})
    if min(np.std(first), np.std(second)) > 1e-6 and len(spread.models) == 2:
        found = difference_interval(first, second, spread)
        expected = stats.ttest_ind(first, second).confidence_interval()
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-9)


def test_the_pooled_deviation_is_that_of_an_analysis_of_variance() -> None:
    groups = {"a": [0.1, 0.2, 0.4], "b": [0.3, 0.5], "c": [0.7, 0.6, 0.9, 0.8], "one": [0.2]}
    spread = pool_deviations(groups)
    squares = sum(np.var(each, ddof=1) * (len(each) - 1) for each in groups.values() if len(each) > 1)
    assert spread.deviation == pytest.approx(math.sqrt(squares / 6))
    assert (spread.degrees, spread.models) == (6, {"a", "b", "c"})
    assert pool_deviations({"one": [0.2], "other": [0.1]}) is None


@pytest.mark.parametrize("factor", [1.0, 3.0, 8.0, 20.0, 100.0])
def test_a_deviation_that_stands_out_is_not_pooled(factor: float) -> None:
    """By an F test against the others at 1 %, times the number of models."""
    groups = {name: [0.2, 0.21, 0.22] for name in "abcdef"}
    groups["f"] = [0.2, 0.2 + 0.01 * factor, 0.2 + 0.02 * factor]
    beyond = stats.f.sf(factor**2, 2, 10)
    assert ("f" in pool_deviations(groups).models) == (6 * beyond >= 0.01)
    assert pool_deviations({"a": [0.1, 0.1, 0.1], "b": [0.1, 0.2, 0.3]}).models == {"a"}
    assert pool_deviations({"a": [0.1, 0.1], "b": [0.2, 0.2]}).models == {"a", "b"}


@pytest.mark.parametrize("seeds", [3, 5])
def test_how_often_the_pooled_interval_holds_the_true_difference(seeds: int) -> None:
    """Eight equal models that vary alike: in 95 of 100 pairs, and it is hardly ever half of what it should be."""
    held, narrow = 0, 0
    for draw in np.random.default_rng(seeds).normal(size=(400, 8, seeds)).tolist():
        spread = pool_deviations({str(number): each for number, each in enumerate(draw)})
        for first, second in itertools.combinations(range(8), 2):
            found = difference_interval(draw[first], draw[second], spread)
            held += found.low <= 0 <= found.high
            narrow += found.high - found.low < 1.96 * math.sqrt(2 / seeds)
    assert held / (400 * 28) == pytest.approx(0.95, abs=0.015)
    assert narrow / (400 * 28) < 0.005


@given(values, st.floats(-1, 1))
def test_without_deviations_a_difference_has_no_width(given_values: list[float], shift: float) -> None:
    constant = [given_values[0]] * 3
    found = difference_interval([value + shift for value in constant], constant)
    assert (found.value, found.low, found.high) == pytest.approx((shift,) * 3, abs=1e-9)


def test_one_value_has_no_interval() -> None:
    found = mean_interval([0.25])
    assert found.value == 0.25
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert math.isnan(mean_interval([math.nan]).value)
    assert math.isnan(difference_interval([0.2], [0.1, 0.2]).low)
    assert math.isnan(difference_interval([0.2, math.nan], [0.1, 0.2]).value)
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

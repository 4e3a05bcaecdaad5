"""Bootstrap: weights of 1 give the plain figures, other weights those of the images literally repeated."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_metrics_ranking import TINY, scored
from torch import Tensor

from contextcaps.evaluation.metrics import (
    average_precision,
    bootstrap,
    bootstrap_mean_average_precision,
    count_calibration,
    count_decisions,
    count_top_k,
    default_resamples,
)
from contextcaps.evaluation.metrics.bootstrap import Bootstrap, draw_weights, weighted_metrics
from contextcaps.evaluation.metrics.streaming import Pairs

LIMITS = {"0.5": 0.5, "low": 0.2}


def plain(scores: Tensor, targets: Tensor) -> dict[str, float]:
    """Every metric by the functions that know nothing of weights."""
    metrics = {
        name: average_precision(scores, targets, average)
        for name, average in (("mAP", "macro"), ("micro_AP", "micro"), ("sample_AP", "samples"))
    }
    for name, limit in LIMITS.items():
        summary = count_decisions(scores, targets, limit).summary()
        metrics |= {f"{metric}@{name}": value for metric, value in summary.items()}
    for k in sorted({min(k, scores.shape[1]) for k in (1, 3, 5)}):
        metrics |= {f"top{k}_{name}": value for name, value in count_top_k(scores, targets, k).summary().items()}
    metrics |= count_calibration(scores, targets).summary()
    return {name: float(value) for name, value in metrics.items()}


@given(data=scored(), chunk_bytes=st.sampled_from([TINY, 2**28]))
@settings(deadline=None)
def test_weights_repeat_images(data, chunk_bytes) -> None:
    scores, targets = data
    weights = draw_weights(len(scores), 3, seed=5)
    weights = torch.cat([torch.ones(len(scores), 1), weights], dim=1)  # [n, R]
    found = weighted_metrics(Pairs(scores, targets, chunk_bytes=chunk_bytes), LIMITS, weights)
    for column in range(4):
        repeated = torch.arange(len(scores)).repeat_interleave(weights[:, column].long())
        expected = plain(scores[repeated], targets[repeated])
        assert {name: float(values[column]) for name, values in found.items()} == pytest.approx(
            expected, abs=1e-9, nan_ok=True
        )


def test_mean_average_precision_alone_is_the_same() -> None:
    generator = torch.Generator().manual_seed(1)
    scores, targets = torch.rand(40, 5, generator=generator), torch.rand(40, 5, generator=generator) < 0.3
    whole = bootstrap(scores, targets, LIMITS, resamples=20, seed=9).samples["mAP"]
    assert torch.equal(bootstrap_mean_average_precision(scores, targets, resamples=20, seed=9), whole)


def test_every_resample_has_as_many_images_and_comes_from_the_seed() -> None:
    weights = draw_weights(50, 200, seed=3)
    assert weights.shape == (50, 200)
    assert set(weights.sum(0).tolist()) == {50.0}
    assert float(weights.mean(1).std()) < 0.2  # no image is favoured
    torch.testing.assert_close(weights[:, :20], draw_weights(50, 20, seed=3))
    assert not torch.equal(weights, draw_weights(50, 200, seed=4))


def test_intervals_are_those_of_literal_resamples() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.rand(60, 4, generator=generator) < 0.3
    scores = ((torch.rand(60, 4, generator=generator) + 0.5 * targets) / 1.5 * 20).round() / 20
    drawn = bootstrap(scores, targets, LIMITS, resamples=40, seed=9)
    weights = draw_weights(60, 40, seed=9)
    literal = []
    for column in range(40):
        repeated = torch.arange(60).repeat_interleave(weights[:, column].long())
        literal.append(plain(scores[repeated], targets[repeated]))
    for name in literal[0]:
        values = torch.tensor([each[name] for each in literal], dtype=torch.float64)
        value = plain(scores, targets)[name]
        low, high = values.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        expected = (max(2 * value - high, 0), min(2 * value - low, 1))
        assert drawn.interval(name, value) == pytest.approx(expected, abs=1e-9)
    assert (drawn.resamples, drawn.seed) == (40, 9)


@given(data=scored())
@settings(deadline=None, max_examples=20)
def test_intervals_are_ordered_and_shares(data) -> None:
    assume(data[1].any())
    drawn = bootstrap(*data, LIMITS, resamples=20)
    for name in drawn.samples:
        middle = drawn.samples[name].nanmedian().item()
        low, high = drawn.interval(name, middle)
        assert math.isnan(low) or 0 <= low <= middle <= high <= 1


def test_resamples_that_do_not_define_a_metric_are_passed_over() -> None:
    assert Bootstrap({"mAP": torch.tensor([0.5, math.nan, 0.5]).double()}, 3, 0).interval("mAP", 0.5) == (0.5, 0.5)
    assert all(map(math.isnan, Bootstrap({"mAP": torch.tensor([math.nan])}, 1, 0).interval("mAP", 0.5)))


def test_fewer_resamples_for_more_pairs() -> None:
    assert [default_resamples(*size) for size in ((0, 80), (4313, 80), (20_000, 171), (10**6, 1000))] == [
        *(1000, 1000, 146, 100)
    ]
    with pytest.raises(ValueError, match="resamples: expected a whole number of at least 1"):
        bootstrap(torch.rand(3, 2), torch.ones(3, 2), LIMITS, resamples=0)
    with pytest.raises(ValueError, match="expected at least one image and one class"):
        bootstrap(torch.rand(0, 2), torch.rand(0, 2).int(), LIMITS)

"""Tuned thresholds, drawn to one for all classes, and bands of scores with what they are worth."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_metrics_ranking import TINY, scored
from torch import Tensor

from contextcaps.evaluation.metrics import count_bands, count_decisions, tune_thresholds
from contextcaps.evaluation.metrics.thresholds import LEVELS, PSEUDO_POSITIVES
from contextcaps.models.score_bands import LEAST_PAIRS, ScoreBand, ScoreBands


def calibrated(images: int, frequencies: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores [n, J] that are chances, and labels drawn with them; the classes have these frequencies, about."""
    generator = torch.Generator().manual_seed(seed)
    bias = frequencies.logit()
    logits = bias + 2 * torch.randn(images, len(frequencies), generator=generator)
    scores = logits.sigmoid()
    return scores, (torch.rand(scores.shape, generator=generator) < scores).int()


@given(data=scored(), chunk_bytes=st.sampled_from([TINY, 2**28]))
def test_thresholds_lie_between_the_floor_and_1_and_decide_alike_in_single_precision(data, chunk_bytes) -> None:
    scores, targets = data
    tuned = tune_thresholds(scores, targets, chunk_bytes=chunk_bytes)
    assert tuned.each.shape == (scores.shape[1],)
    assert 0 < tuned.floor <= float(tuned.each.min())
    assert float(tuned.each.max()) < 1
    assert tuned.floor == math.ceil(tuned.shared * LEVELS / 2) / LEVELS
    assert tuned.pseudo_positives in PSEUDO_POSITIVES
    assert torch.equal(tuned.each.float().double(), tuned.each)


@given(data=scored(images=12, classes=4))
def test_the_shared_threshold_is_the_best_of_all(data) -> None:
    scores, targets = data
    tuned = tune_thresholds(scores, targets, math.inf)
    assert tuned.each.tolist() == [tuned.shared] * scores.shape[1]

    def worth(threshold: float) -> float:
        figures = count_decisions(scores, targets, threshold).summary()
        return float(figures["CF1"] + figures["OF1"])

    if targets.any():
        others = {
            (math.floor(score * LEVELS) + more) / LEVELS for score in scores.flatten().tolist() for more in (0, 1)
        }
        assert worth(tuned.shared) >= max(worth(other) for other in others if 0 < other < 1) - 1e-12
    else:
        assert tuned.shared == 0.5


def test_shrinkage_by_hand() -> None:
    # One image for each score; the best threshold of class 0 is 0.75 with three positives, of class 1 0.25 with one.
    scores = torch.tensor([[0.75, 0.25], [0.75, 0.125], [0.75, 0.125], [0.625, 0.125]])
    targets = torch.tensor([[1, 1], [1, 0], [1, 0], [0, 0]])
    shared = tune_thresholds(scores, targets, math.inf).shared
    tuned = tune_thresholds(scores, targets, 3.0)
    expected = [(3 * 0.75 + 3 * shared) / 6, (1 * 0.25 + 3 * shared) / 4]
    assert tuned.each.tolist() == pytest.approx([max(each, tuned.floor) for each in expected], abs=1 / LEVELS)


def test_a_class_with_one_positive_stays_near_the_shared_threshold() -> None:
    generator = torch.Generator().manual_seed(2)
    scores, targets = calibrated(400, torch.full((20,), 0.1))
    rare = torch.rand(400, 1, generator=generator) * 0.02
    lone = torch.zeros(400, 1, dtype=torch.int32)
    lone[3], rare[3] = 1, 0.0017
    tuned = tune_thresholds(torch.cat([scores, rare], 1), torch.cat([targets, lone], 1))
    assert float(tuned.each[-1]) >= tuned.floor > 0.05
    assert abs(float(tuned.each[-1]) - tuned.shared) < tuned.shared / 4


def test_a_class_that_differs_gets_a_threshold_of_its_own_where_its_positives_are_many() -> None:
    scores, targets = calibrated(4000, torch.full((6,), 0.2))
    scores = torch.cat([scores[:, :5], scores[:, 5:].sqrt()], 1)  # the last one's scores are too high
    tuned = tune_thresholds(scores, targets)
    assert tuned.pseudo_positives < math.inf
    assert float(tuned.each[5]) > float(tuned.each[:5].max()) + 0.05
    unseen, truth = calibrated(4000, torch.full((6,), 0.2), seed=1)
    unseen = torch.cat([unseen[:, :5], unseen[:, 5:].sqrt()], 1)
    own, one = (count_decisions(unseen, truth, limit).summary() for limit in (tuned.each, tuned.shared))
    assert float(own["OF1"]) > float(one["OF1"])
    assert float(own["CF1"]) > float(one["CF1"])


def test_on_unseen_images_with_rare_classes_nothing_is_lost_to_the_shared_threshold() -> None:
    frequencies = torch.logspace(-3, -0.7, 100)
    tuned = tune_thresholds(*calibrated(300, frequencies))
    scores, targets = calibrated(3000, frequencies, seed=1)
    own, one = (count_decisions(scores, targets, limit).summary() for limit in (tuned.each, tuned.shared))
    assert float(own["OF1"]) > float(one["OF1"]) - 0.005
    assert float(own["CF1"]) > float(one["CF1"]) - 0.005


def test_thresholds_of_no_images_no_labels_and_of_logits() -> None:
    for images in (0, 3):
        tuned = tune_thresholds(torch.rand(images, 2), torch.zeros(images, 2, dtype=torch.int))
        assert (tuned.each.tolist(), tuned.shared, tuned.floor) == ([0.5, 0.5], 0.5, 0.25)
    for function in (tune_thresholds, count_bands):
        with pytest.raises(ValueError, match="expected chances from 0 to 1, got -3 to 4; logits need a sigmoid"):
            function(torch.tensor([[-3.0], [4.0]]), torch.tensor([[0], [1]]))


@given(data=scored(images=40, classes=5), chunk_bytes=st.sampled_from([TINY, 2**28]))
def test_bands_hold_every_pair_once(data, chunk_bytes) -> None:
    scores, targets = data
    bands = count_bands(scores, targets, chunk_bytes=chunk_bytes).bands
    if scores.numel() < LEAST_PAIRS:
        assert bands == ()
        return
    assert sum(band.pairs for band in bands) == scores.numel()
    assert sum(band.present for band in bands) == int(targets.sum())
    highest = math.inf
    for band in bands:
        inside = (scores.double() >= band.lowest) & (scores.double() < highest)
        assert (band.pairs, band.present) == (int(inside.sum()), int(targets[inside].sum()))
        highest = band.lowest


def test_what_bands_promise_holds_on_unseen_images() -> None:
    frequencies = torch.logspace(-2, -0.5, 40)
    bands = count_bands(*calibrated(1000, frequencies))
    scores, targets = calibrated(4000, frequencies, seed=1)
    assert 20 < len(bands.bands) <= 51
    for least in (0.5, 0.8, 0.9):
        precise = count_decisions(scores, targets, bands.threshold_of_precision(least)).summary()
        assert float(precise["OP"]) > least - 0.02
        complete = count_decisions(scores, targets, bands.threshold_of_recall(least)).summary()
        assert float(complete["OR"]) > least - 0.02
    for score in (0.1, 0.3, 0.7, 0.95):
        near = (scores - score).abs() < 0.03
        assert bands.precision(score) == pytest.approx(float(targets[near].double().mean()), abs=0.08)


def test_what_no_threshold_reaches() -> None:
    bands = ScoreBands((ScoreBand(0.5, 50, 30), ScoreBand(0.25, 50, 15), ScoreBand(0.0, 100, 5)))
    assert bands.threshold_of_precision(0.6) == 0.5
    assert bands.threshold_of_precision(0.45) == 0.25
    assert bands.threshold_of_precision(0.61) is None
    assert bands.best_precision() == 0.6
    assert bands.threshold_of_recall(0.9) == 0.25
    assert bands.threshold_of_recall(0.91) is None
    assert bands.best_recall() == 0.9
    assert (bands.precision(0.5), bands.precision(0.49), bands.precision(0.0)) == (0.6, 0.3, 0.05)
    nothing = ScoreBands()
    assert (nothing.precision(0.5), nothing.threshold_of_precision(0.1), nothing.best_recall()) == (None, None, 0.0)


@pytest.mark.parametrize(
    "rows",
    [[(0.5, 49, 1), (0.0, 50, 1)], [(0.5, 50, 51), (0.0, 50, 1)], [(0.5, 50, 1)], [(0.0, 50, 1), (0.5, 50, 1)]],
    ids=["few", "more-present", "no-end", "order"],
)
def test_bands_are_checked(rows) -> None:
    with pytest.raises(ValueError, match=r"bands? of scores: expected"):
        ScoreBands(tuple(ScoreBand(*row) for row in rows))

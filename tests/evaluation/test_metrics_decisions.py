"""Decisions at thresholds, top-k, calibration, and the constant prior."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, f1_score, precision_score, recall_score
from test_metrics_ranking import TINY, scored

from contextcaps.evaluation.metrics import (
    average_precision,
    count_calibration,
    count_decisions,
    count_top_k,
    prior_scores,
    prior_thresholds,
)
from contextcaps.extras import import_extra


@given(data=scored(), per_class=st.booleans(), chunk_bytes=st.sampled_from([TINY, 2**28]))
def test_decisions_agree_with_scikit_learn(data, per_class, chunk_bytes) -> None:
    scores, targets = data
    thresholds = torch.linspace(0.1, 0.9, scores.shape[1], dtype=torch.float64) if per_class else 0.5
    decisions = count_decisions(scores, targets, thresholds, chunk_bytes=chunk_bytes)
    summary = {name: float(value) for name, value in decisions.summary().items()}
    if not targets.any():
        assert all(map(math.isnan, summary.values()))
        return
    said, truth = (scores >= thresholds).int().numpy(), targets.numpy()
    for kind, average, name in (
        (precision_score, "macro", "CP"),
        (recall_score, "macro", "CR"),
        (f1_score, "macro", "macro_F1"),
        (precision_score, "micro", "OP"),
        (recall_score, "micro", "OR"),
        (f1_score, "micro", "OF1"),
    ):
        each = [kind(truth[:, j], said[:, j], zero_division=0) for j in range(truth.shape[1]) if truth[:, j].any()]
        overall = kind(truth.ravel(), said.ravel(), zero_division=0)
        assert summary[name] == pytest.approx(np.mean(each) if average == "macro" else overall)
    both = summary["CP"] + summary["CR"]
    assert summary["CF1"] == pytest.approx(2 * summary["CP"] * summary["CR"] / both if both else 0)


def test_a_score_equal_to_its_threshold_says_present() -> None:
    decisions = count_decisions(torch.tensor([[0.1], [0.3]]), torch.tensor([[1], [1]]), float(torch.tensor(0.3)))
    assert decisions.predicted.tolist() == [1]


@pytest.mark.parametrize("thresholds", [torch.ones(3), math.nan], ids=["count", "nan"])
def test_thresholds_are_checked(thresholds) -> None:
    with pytest.raises(ValueError, match="thresholds: expected one number or"):
        count_decisions(torch.rand(2, 2), torch.ones(2, 2), thresholds)


@given(data=scored(images=6, classes=5), k=st.integers(1, 6))
def test_top_k_is_the_mean_over_all_ways_to_break_ties(data, k) -> None:
    scores, targets = data
    classes = scores.shape[1]
    taken = min(k, classes)
    expected = 0.0
    for one, truth in zip(scores.tolist(), targets.tolist(), strict=True):
        best = max(sum(one[j] for j in chosen) for chosen in itertools.combinations(range(classes), taken))
        ways = [
            chosen
            for chosen in itertools.combinations(range(classes), taken)
            if sum(one[j] for j in chosen) == pytest.approx(best, abs=1e-9)
        ]
        expected += float(np.mean([sum(truth[j] for j in chosen) for chosen in ways]))
    top = count_top_k(scores, targets, k, chunk_bytes=TINY)
    assert top.k == taken
    assert float(top.hits) == pytest.approx(expected)
    summary = top.summary()
    assert float(summary["precision"]) == pytest.approx(expected / (taken * len(scores)))
    if targets.any():
        assert float(summary["recall"]) == pytest.approx(expected / int(targets.sum()))
        assert float(summary["F1"]) == pytest.approx(2 * expected / (taken * len(scores) + int(targets.sum())))


def test_calibration_of_logits() -> None:
    with pytest.raises(ValueError, match="expected chances from 0 to 1, got -3 to 4; logits need a sigmoid"):
        count_calibration(torch.tensor([[-3.0], [4.0]]), torch.tensor([[0], [1]]))


@given(data=scored(), chunk_bytes=st.sampled_from([TINY, 2**28]))
def test_calibration_agrees_with_torchmetrics_and_scikit_learn(data, chunk_bytes) -> None:
    functional = import_extra("torchmetrics.functional.classification", "dev", "another opinion")
    scores, targets = data
    scores = (scores * 0.97 + 0.011).double()  # no score on the edge of a bin, where rounding decides
    calibration = count_calibration(scores, targets, chunk_bytes=chunk_bytes)
    summary = calibration.summary()
    expected = functional.binary_calibration_error(scores.flatten(), targets.flatten(), n_bins=15, norm="l1")
    assert float(summary["ECE"]) == pytest.approx(float(expected), abs=1e-6)
    expected = brier_score_loss(targets.flatten().numpy(), scores.flatten().numpy(), pos_label=1)
    assert float(summary["Brier"]) == pytest.approx(expected)
    assert int(calibration.pairs.sum()) == scores.numel()


def test_bins_by_hand() -> None:
    calibration = count_calibration(torch.tensor([[0.0, 0.1], [0.5, 1.0]]), torch.tensor([[0, 1], [1, 1]]), bins=2)
    assert calibration.pairs.tolist() == [2, 2]
    assert calibration.mean_score.tolist() == pytest.approx([0.05, 0.75])
    assert calibration.frequency.tolist() == [0.5, 1.0]
    assert float(calibration.summary()["ECE"]) == pytest.approx((0.45 + 0.25) / 2)


def test_the_prior_says_the_same_of_every_image_in_the_memory_of_one() -> None:
    generator = torch.Generator().manual_seed(1)
    targets = torch.rand(200, 4, generator=generator) < torch.tensor([0.5, 0.1, 0.02, 0.3])
    frequencies = (0.4, 0.2, 0.0, 0.3)
    scores = prior_scores(frequencies, 200)
    assert scores.shape == (200, 4)
    assert scores.untyped_storage().nbytes() == 16
    torch.testing.assert_close(average_precision(scores, targets, None), targets.double().mean(0))
    said = count_decisions(scores, targets, prior_thresholds(frequencies)).predicted
    assert said.tolist() == [200, 200, 0, 200]


@pytest.mark.parametrize("frequencies", [(0.5, 1.5), (math.nan,), ((0.5,),)], ids=["above 1", "nan", "shape"])
def test_the_prior_is_checked(frequencies) -> None:
    with pytest.raises(ValueError, match="frequencies: expected one share from 0 to 1 for each class"):
        prior_scores(frequencies, 3)

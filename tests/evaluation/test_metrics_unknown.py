"""Unknown labels: every metric is what it is without those pairs of image and class."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score
from test_metrics_bootstrap import LIMITS, plain
from test_metrics_ranking import TINY, scored
from torch import Tensor

import reference
from contextcaps.data.unknown import UNKNOWN, class_frequencies, is_unknown, labels_or_nan
from contextcaps.evaluation.metrics import (
    average_precision,
    bootstrap_mean_average_precision,
    count_calibration,
    count_decisions,
    count_top_k,
    micro_curve,
)
from contextcaps.evaluation.metrics.bootstrap import draw_weights, weighted_metrics
from contextcaps.evaluation.metrics.streaming import Pairs
from contextcaps.evaluation.metrics.thresholds import count_levels
from contextcaps.extras import import_extra

pieces = st.sampled_from([TINY, 2**28])


@st.composite
def partly_known(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Scores [n, J] with many ties, targets with unknown ones among them, and which are known."""
    scores, targets = draw(scored())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    known = torch.rand(targets.shape, generator=generator) < draw(st.sampled_from([0.0, 0.3, 0.8, 1.0]))
    return scores, targets.to(torch.uint8).masked_fill(~known, UNKNOWN), known


def literal(scores: Tensor, targets: Tensor, known: Tensor) -> dict[str, float]:
    """Every metric in loops over the known pairs."""
    n, classes = scores.shape
    rows = [[(float(scores[i, j]), int(targets[i, j])) for j in range(classes) if known[i, j]] for i in range(n)]
    columns = [[(float(scores[i, j]), int(targets[i, j])) for i in range(n) if known[i, j]] for j in range(classes)]
    everything = [pair for row in rows for pair in row]

    def mean(values: list[float]) -> float:
        return sum(values) / len(values) if values else math.nan

    def precision(lists: list[list[tuple[float, int]]]) -> float:
        """Mean AP of the lists with a positive."""
        shown = [list(zip(*each, strict=True)) for each in lists if any(truth for _, truth in each)]
        return mean([reference.average_precision(*each) for each in shown])

    metrics = {"mAP": precision(columns), "micro_AP": precision([everything]), "sample_AP": precision(rows)}
    for name, limit in LIMITS.items():
        each = [
            (
                sum(truth for score, truth in column if score >= limit),
                sum(score >= limit for score, _ in column),
                sum(truth for _, truth in column),
            )
            for column in columns
        ]
        shown = [counts for counts in each if counts[2]]
        right, said, there = (sum(counts[part] for counts in each) for part in range(3))
        cp = mean([a / b if b else 0.0 for a, b, _ in shown])
        cr = mean([a / c for a, _, c in shown])
        nothing = 0.0 if there else math.nan
        metrics |= {
            f"CP@{name}": cp,
            f"CR@{name}": cr,
            f"CF1@{name}": (2 * cp * cr / (cp + cr) if cp + cr else 0.0) + nothing,
            f"OP@{name}": (right / said if said else 0.0) + nothing,
            f"OR@{name}": right / there if there else math.nan,
            f"OF1@{name}": 2 * right / (said + there) if there else math.nan,
            f"macro_F1@{name}": mean([2 * a / (b + c) for a, b, c in shown]),
        }
    for k in sorted({min(k, classes) for k in (1, 3, 5)}):
        right, said, there = 0.0, 0, sum(truth for _, truth in everything)
        for row in rows:
            best = sorted((score for score, _ in row), reverse=True)[:k]
            said += len(best)
            if best:
                tied = [truth for score, truth in row if score == best[-1]]
                above = [truth for score, truth in row if score > best[-1]]
                right += sum(above) + sum(tied) / len(tied) * (len(best) - len(above))
        metrics |= {
            f"top{k}_precision": right / said if said else 0.0,
            f"top{k}_recall": right / there if there else math.nan,
            f"top{k}_F1": 2 * right / (said + there) if there else math.nan,
        }
    bins: dict[int, list[tuple[float, int]]] = {}
    for score, truth in everything:
        bins.setdefault(min(int(score * 15), 14), []).append((score, truth))
    gaps = [abs(sum(score - truth for score, truth in each)) for each in bins.values()]
    metrics["ECE"] = sum(gaps) / len(everything) if everything else math.nan
    metrics["Brier"] = mean([(score - truth) ** 2 for score, truth in everything])
    return metrics


@given(data=partly_known())
@settings(deadline=None)
def test_every_metric_is_that_of_the_known_pairs(data) -> None:
    scores, targets, known = data
    assert plain(scores, targets) == pytest.approx(literal(scores, targets, known), abs=1e-6, nan_ok=True)


@given(data=partly_known(), chunk_bytes=pieces)
@settings(deadline=None)
def test_resampled_metrics_are_those_of_the_images_repeated(data, chunk_bytes) -> None:
    scores, targets, _ = data
    weights = torch.cat([torch.ones(len(scores), 1), draw_weights(len(scores), 2, seed=5)], dim=1)  # [n, R]
    found = weighted_metrics(Pairs(scores, targets, chunk_bytes=chunk_bytes), LIMITS, weights)
    for column in range(3):
        repeated = torch.arange(len(scores)).repeat_interleave(weights[:, column].long())
        assert {name: float(values[column]) for name, values in found.items()} == pytest.approx(
            plain(scores[repeated], targets[repeated]), abs=1e-6, nan_ok=True
        )


@given(data=partly_known(), chunk_bytes=pieces)
def test_a_class_is_measured_and_counted_on_the_images_that_know_it(data, chunk_bytes) -> None:
    scores, targets, known = data
    precision = average_precision(scores, targets, None, chunk_bytes=chunk_bytes)
    levels = count_levels(scores, targets, chunk_bytes=chunk_bytes)
    counts = count_decisions(scores, targets, 0.5, chunk_bytes=chunk_bytes)
    for j in range(scores.shape[1]):
        own, truth = scores[known[:, j], j, None], targets[known[:, j], j, None]
        assert precision[j].item() == pytest.approx(average_precision(own, truth, None).item(), nan_ok=True)
        for count, alone in zip(levels, count_levels(own, truth), strict=True):
            assert torch.equal(count[:, j], alone[:, 0])
        alone = count_decisions(own, truth, 0.5)
        for name in ("correct", "predicted", "present"):
            assert getattr(counts, name)[j] == getattr(alone, name)[0]


@given(data=partly_known())
def test_all_pairs_together_are_those_that_are_known(data) -> None:
    scores, targets, known = data
    flat, truth = scores[known][:, None], targets[known][:, None]
    curve, expected = micro_curve(scores, targets), micro_curve(flat, truth)
    for name in ("thresholds", "positives", "retrieved"):
        assert torch.equal(getattr(curve, name), getattr(expected, name))
    bins, alone = count_calibration(scores, targets), count_calibration(flat, truth)
    torch.testing.assert_close((bins.pairs, bins.scores, bins.present), (alone.pairs, alone.scores, alone.present))
    torch.testing.assert_close(bins.squares, alone.squares)


def unknown_case(images: int = 60, classes: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    scores = torch.rand(images, classes, generator=generator)
    known = torch.rand(images, classes, generator=generator) < 0.6
    targets = (torch.rand(images, classes, generator=generator) < 0.3).to(torch.uint8).masked_fill(~known, UNKNOWN)
    return scores, targets, known


def test_agrees_with_scikit_learn_on_each_class() -> None:
    scores, targets, known = unknown_case()
    decided = count_decisions(scores, targets, 0.5)
    for j, precision in enumerate(average_precision(scores, targets, None).tolist()):
        own, truth = scores[known[:, j], j].numpy(), targets[known[:, j], j].numpy()
        assert precision == pytest.approx(average_precision_score(truth, own))
        assert float(decided.f1[j]) == pytest.approx(f1_score(truth, own >= 0.5))


def test_agrees_with_torchmetrics() -> None:
    """Its `ignore_index` leaves out the same pairs: per class, macro, and all pairs together."""
    metrics = import_extra("torchmetrics.functional.classification", "dev", "this test")
    scores, targets, _ = unknown_case()
    options = {"num_labels": scores.shape[1], "ignore_index": UNKNOWN}
    precision = metrics.multilabel_average_precision(scores, targets.long(), average=None, **options)
    torch.testing.assert_close(average_precision(scores, targets, None), precision.double())
    micro = metrics.multilabel_average_precision(scores, targets.long(), average="micro", **options)
    torch.testing.assert_close(average_precision(scores, targets, "micro"), micro.double())
    summary = count_decisions(scores, targets, 0.5).summary()
    for name, average in (("macro_F1", "macro"), ("OF1", "micro")):
        theirs = metrics.multilabel_f1_score(scores, targets.long(), average=average, **options)
        torch.testing.assert_close(summary[name], theirs.double())


def test_bootstrap_of_map_alone_takes_them() -> None:
    scores, targets, _ = unknown_case()
    weights = draw_weights(len(scores), 20, seed=9)
    whole = weighted_metrics(Pairs(scores, targets), LIMITS, weights)["mAP"]
    assert torch.equal(bootstrap_mean_average_precision(scores, targets, resamples=20, seed=9), whole)


def test_an_image_that_knows_less_than_k_classes_is_predicted_all_of_them() -> None:
    top = count_top_k(torch.tensor([[0.9, 0.8, 0.1], [0.3, 0.2, 0.1]]), torch.tensor([[1, UNKNOWN, 0], [0, 0, 1]]), 3)
    assert (float(top.hits), float(top.predicted), float(top.present)) == (2, 5, 2)


def test_arrays_and_types() -> None:
    scores, targets, _ = unknown_case()
    expected = average_precision(scores, targets)
    for dtype in (torch.int16, torch.int64, torch.float32, torch.float16):
        assert average_precision(scores, targets.to(dtype)) == expected
    assert average_precision(scores.numpy(), targets.numpy()) == expected
    assert average_precision(scores.half(), targets) == average_precision(scores.half().float(), targets)
    with pytest.raises(ValueError, match="targets: expected 0, 1 and 255"):
        average_precision(scores, torch.where(targets == UNKNOWN, -1, targets.to(torch.int8)))


def test_scores_of_minus_infinity_beside_unknown_labels_are_refused() -> None:
    """They would stand level with the pairs that do not count."""
    targets = torch.tensor([[1, 0], [0, UNKNOWN]])
    with pytest.raises(ValueError, match="scores: expected finite ones beside unknown labels, got minus infinity"):
        average_precision(torch.tensor([[0.5, -torch.inf], [0.2, 0.1]]), targets)
    with pytest.raises(ValueError, match=r"scores: expected chances from 0 to 1, got 0\.2 to 2"):
        count_calibration(torch.tensor([[0.5, 2.0], [0.2, 0.1]]), targets)
    assert count_calibration(torch.tensor([[0.5, 0.5], [0.2, 7.0]]), targets).pairs.sum() == 3


def test_frequencies_and_labels_for_fits() -> None:
    targets = torch.tensor([[1, UNKNOWN, UNKNOWN], [0, 1, UNKNOWN], [1, UNKNOWN, UNKNOWN]], dtype=torch.uint8)
    np.testing.assert_array_equal(class_frequencies(targets.numpy()), [2 / 3, 1, 0])
    assert is_unknown(targets).sum() == 5
    assert not is_unknown(torch.tensor([-1], dtype=torch.int8)).any()  # 255 does not fit into it
    labels = labels_or_nan(targets)
    assert torch.equal(labels.isnan(), is_unknown(targets))
    assert labels[~labels.isnan()].tolist() == [1, 0, 1, 1]

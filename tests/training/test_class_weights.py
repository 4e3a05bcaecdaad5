"""Class weights: each formula by hand, the mean over positives, the cap, classes without a positive."""

import itertools
import math

import pytest
import torch
from contract import assert_refused
from hypothesis import given
from hypothesis import strategies as st

from contextcaps.training.class_weights import class_weights
from contextcaps.training.losses import margin_loss

KINDS = ["none", "inverse", "sqrt", "effective"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def mean_over_positives(weights: torch.Tensor, counts: list[int]) -> float:
    return sum(count * weight for count, weight in zip(counts, weights.tolist(), strict=True)) / sum(counts)


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("none", lambda count: 1.0),
        ("inverse", lambda count: 1 / count),
        ("sqrt", lambda count: 1 / math.sqrt(count)),
        ("effective", lambda count: 1 / sum(0.999**power for power in range(count))),  # 1 + β + … + β^(n-1)
    ],
    ids=KINDS,
)
def test_weights_by_hand(kind: str, raw) -> None:
    counts = [400, 100, 25]
    expected = [raw(count) for count in counts]
    scale = sum(counts) / sum(count * weight for count, weight in zip(counts, expected, strict=True))
    weights = class_weights(counts, 500, kind)
    assert weights.dtype == torch.float32
    assert weights.tolist() == pytest.approx([scale * weight for weight in expected], rel=1e-5)


@given(
    counts=st.lists(st.integers(0, 100_000), min_size=1, max_size=60),
    kind=st.sampled_from(KINDS),
    cap=st.sampled_from([1.0, 1.5, 20.0, 1e6]),
)
def test_weights_keep_their_promises(counts: list[int], kind: str, cap: float) -> None:
    """Finite, above 0, none above the cap, rarer never lighter, mean over positives 1, no positive: 1."""
    weights = class_weights(counts, 100_000, kind, cap=cap)
    assert weights.shape == (len(counts),)
    assert weights.isfinite().all()
    assert (weights > 0).all()
    assert (weights <= cap).all()
    assert all(weight == 1 for count, weight in zip(counts, weights.tolist(), strict=True) if count == 0)
    if any(counts):
        assert mean_over_positives(weights, counts) == pytest.approx(1, rel=1e-5)
    shown = sorted((count, weight) for count, weight in zip(counts, weights.tolist(), strict=True) if count)
    assert all(second[1] <= first[1] for first, second in itertools.pairwise(shown) if first[0] < second[0])


@every_kind
def test_a_frozen_network_costs_the_same_with_and_without_weights(kind: str) -> None:
    """What the scaling is for: with all lengths alike, the loss over the whole set keeps its size."""
    targets = torch.rand(2000, 12, generator=torch.Generator().manual_seed(1)) < torch.logspace(-3, -0.5, 12)
    weights = class_weights(targets.sum(dim=0), len(targets), kind)
    scores = torch.full((2000, 12), 0.05)
    torch.testing.assert_close(margin_loss(scores, targets, class_weights=weights), margin_loss(scores, targets))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_class_with_one_image_does_not_rule(kind: str) -> None:
    weights = class_weights([50_000, 20_000, 1], 60_000, kind)
    assert weights[2] == 20
    assert class_weights([50_000, 20_000, 1], 60_000, kind, cap=1e9)[2] > 20


@every_kind
def test_counts_may_be_a_tensor(kind: str) -> None:
    counts = [7, 0, 3]
    assert class_weights(torch.tensor(counts), 10, kind).equal(class_weights(counts, 10, kind))


@every_kind
def test_no_class_has_a_positive(kind: str) -> None:
    assert class_weights([0, 0], 10, kind).tolist() == [1, 1]


def test_effective_number_lies_between_none_and_inverse() -> None:
    counts = [5000, 50]
    assert class_weights(counts, 5000, "effective", beta=0).equal(class_weights(counts, 5000, "none"))
    nearly_one = class_weights(counts, 5000, "effective", cap=1e9, beta=1 - 1e-9)
    torch.testing.assert_close(nearly_one, class_weights(counts, 5000, "inverse", cap=1e9))


@pytest.mark.parametrize(
    ("settings", "name", "actual"),
    [
        ({"counts": []}, "counts", "none"),
        ({"counts": [1, -2]}, "counts", "-2 for class 1"),
        ({"counts": [11, 2]}, "counts", "11 for class 0"),
        ({"total": 0}, "total", "0"),
        ({"kind": "invert"}, "kind", "'invert'"),
        ({"cap": 0.5}, "cap", "0.5"),
        ({"cap": math.nan}, "cap", "nan"),
        ({"beta": 1.0}, "beta", "1.0"),
        ({"beta": -0.1}, "beta", "-0.1"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_wrong_settings_are_refused(settings: dict, name: str, actual: str) -> None:
    assert_refused(lambda: class_weights(**{"counts": [1, 2], "total": 10, **settings}), name, actual)

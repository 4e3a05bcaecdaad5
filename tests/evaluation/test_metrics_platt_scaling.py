"""Platt scaling: the optimum of scipy, what is drawn with a known scale and shift, and data that have no optimum."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize
from test_metrics_ranking import TINY
from torch import Tensor

from contextcaps.data.unknown import UNKNOWN
from contextcaps.evaluation.metrics import average_precision, count_calibration, fit_platt_scaling, platt_scaling
from contextcaps.evaluation.metrics.platt_scaling import SCALES


def drawn(seed: int, images: int, classes: int, scale: float, shift: float) -> tuple[Tensor, Tensor]:
    """Logits [n, J], and labels drawn with the chances sigmoid(scale · logit + shift)."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(images, classes, generator=generator, dtype=torch.float64) - 1
    chances = (scale * logits + shift).sigmoid()
    return logits, (torch.rand(chances.shape, generator=generator) < chances).to(torch.uint8)


def loss(values: np.ndarray, logits: np.ndarray, targets: np.ndarray) -> float:
    """The sum that the module's docstring has, pair by pair."""
    signed = np.where(targets == 1, 1, -1) * (values[0] * logits + values[1])
    return float(np.logaddexp(0, -signed).sum() + ((values[0] - 1) ** 2 + values[1] ** 2) / 2)


@given(
    seed=st.integers(0, 10_000),
    images=st.integers(1, 30),
    scale=st.floats(0.1, 5),
    shift=st.floats(-4, 4),
    unknown=st.sampled_from([0.0, 0.4]),
    chunk_bytes=st.sampled_from([TINY, 2**28]),
)
def test_it_is_the_optimum_that_scipy_finds(seed, images, scale, shift, unknown, chunk_bytes) -> None:
    logits, targets = drawn(seed, images, 4, scale, shift)
    open_ones = torch.rand(targets.shape, generator=torch.Generator().manual_seed(seed)) < unknown
    targets[open_ones] = UNKNOWN
    operands = logits[~open_ones].numpy(), targets[~open_ones].numpy()
    bounds = [SCALES, (None, None)]
    expected = minimize(loss, (1, 0), operands, bounds=bounds, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9})
    found = np.array(fit_platt_scaling(logits, targets, chunk_bytes=chunk_bytes))
    assert loss(found, *operands) <= expected.fun + 1e-9
    assert found == pytest.approx(expected.x, abs=2e-3)
    around = found + 1e-3 * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    assert all(loss(near, *operands) > loss(found, *operands) for near in around if near[0] >= SCALES[0])


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (0.4, -2.0), (3.0, 0.5), (1.9, -2.9)])
def test_it_finds_the_scale_and_shift_that_labels_were_drawn_with(scale, shift) -> None:
    logits, targets = drawn(0, 4000, 20, scale, shift)
    assert fit_platt_scaling(logits, targets) == pytest.approx((scale, shift), rel=0.03, abs=0.03)
    assert fit_platt_scaling(logits.float(), targets) == pytest.approx(fit_platt_scaling(logits, targets), abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_a_few_steps_are_enough_also_where_rounding_hides_the_last_gains(seed, monkeypatch) -> None:
    """A fit ends each epoch: of 300,000 pairs it once looked at them two thousand times."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.rand(2000, 150, generator=generator) < torch.linspace(0.005, 0.3, 150)
    chances = 0.6 * torch.rand(targets.shape, generator=generator) + 0.4 * targets
    looks = []
    original = platt_scaling._loss
    monkeypatch.setattr(platt_scaling, "_loss", lambda *arguments: looks.append(1) or original(*arguments))
    fit_platt_scaling(torch.logit(chances, eps=1e-6), targets)
    assert len(looks) < 30


def test_unseen_scores_are_calibrated_and_ranked_as_before() -> None:
    scale, shift = fit_platt_scaling(*drawn(1, 500, 30, 1.9, -2.9))
    logits, targets = drawn(2, 500, 30, 1.9, -2.9)
    raw, scores = logits.sigmoid(), (scale * logits + shift).sigmoid()
    before, after = (float(count_calibration(each, targets).summary()["ECE"]) for each in (raw, scores))
    assert after < 0.01 < 0.1 < before
    for average in ("macro", "micro", "samples"):
        expected = float(average_precision(raw, targets, average=average))
        assert float(average_precision(scores, targets, average=average)) == pytest.approx(expected, abs=1e-12)


def test_scores_the_wrong_way_round_keep_their_order() -> None:
    """The best scale would be below 0; the shift is then the best one at the least scale."""
    logits, targets = drawn(3, 300, 5, -1.0, 0.5)
    scale, shift = fit_platt_scaling(logits, targets)
    assert scale == SCALES[0]
    steps = np.linspace(shift - 1, shift + 1, 2001)
    losses = [loss(np.array([scale, step]), logits.numpy(), targets.numpy()) for step in steps]
    assert steps[int(np.argmin(losses))] == pytest.approx(shift, abs=1e-3)


@given(
    seed=st.integers(0, 10_000), size=st.sampled_from([1e-6, 1.0, 40.0, 300.0]), share=st.sampled_from([0.0, 0.5, 1.0])
)
def test_any_data_have_a_finite_optimum(seed, size, share) -> None:
    """All present, all absent, or present exactly above 0: the likelihood alone has its optimum at infinity."""
    logits = size * torch.randn(50, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assume(bool((logits.abs() > 1e-9).all()))
    targets = (logits > 0) if share == 0.5 else torch.full(logits.shape, bool(share))
    scale, shift = fit_platt_scaling(logits, targets)
    assert SCALES[0] <= scale <= SCALES[1]
    assert math.isfinite(shift)
    assert loss(np.array([scale, shift]), logits.numpy(), targets.numpy()) <= loss(
        np.array([1.0, 0.0]), logits.numpy(), targets.numpy()
    )


def test_without_pairs_nothing_moves() -> None:
    for targets in (torch.zeros(0, 3, dtype=torch.uint8), torch.full((4, 3), UNKNOWN)):
        assert fit_platt_scaling(torch.ones(targets.shape), targets) == (1.0, 0.0)


def test_equal_scores_become_the_share_that_is_present() -> None:
    targets = (torch.arange(5000) % 10 == 0).view(1000, 5)
    scale, shift = fit_platt_scaling(torch.full((1000, 5), 2.0), targets)
    assert torch.tensor(2 * scale + shift).sigmoid() == pytest.approx(0.1, abs=1e-3)

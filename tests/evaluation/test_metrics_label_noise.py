"""The shares of labels in error: recovered where they are known, the minimum of the plain loss, Bayes by hand."""

import math

import pytest
import torch

from contextcaps.data.unknown import UNKNOWN
from contextcaps.evaluation.metrics import LabelNoise, fit_label_noise


def drawn(missing: float, wrong: float, images: int = 20_000) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that are twice too large and 1 too high, and labels with errors."""
    random = torch.Generator().manual_seed(4)
    logits = 4 * torch.randn(images, 6, generator=random) - 4
    there = torch.rand(logits.shape, generator=random) < logits.sigmoid()
    kept = torch.rand(logits.shape, generator=random) > missing
    added = torch.rand(logits.shape, generator=random) < wrong
    return 2 * logits + 1, ((there & kept) | (~there & added)).to(torch.uint8)


def loss(noise: LabelNoise, logits: torch.Tensor, targets: torch.Tensor) -> float:
    """The same as a plain loop over labels."""
    total = ((noise.scale - 1) ** 2 + noise.shift**2) / 2
    for share in (noise.missing, noise.wrong):
        total -= math.log(share) + 99 * math.log(1 - share)
    for logit, target in zip(logits.flatten().tolist(), targets.flatten().tolist(), strict=True):
        if target != UNKNOWN:
            there = 1 / (1 + math.exp(-(noise.scale * logit + noise.shift)))
            present = noise.wrong + (1 - noise.missing - noise.wrong) * there
            total -= math.log(present if target else 1 - present)
    return total


@pytest.mark.parametrize(("missing", "wrong"), [(0.05, 0.0), (0.02, 0.003), (0.2, 0.02)])
def test_shares_are_recovered(missing, wrong) -> None:
    found = fit_label_noise(*drawn(missing, wrong))
    assert found.scale == pytest.approx(0.5, rel=0.05)
    assert found.shift == pytest.approx(-0.5, abs=0.1)
    assert found.missing == pytest.approx(missing, rel=0.15)
    assert found.wrong == pytest.approx(wrong, rel=0.15, abs=3e-4)


def test_it_is_the_minimum_of_the_plain_loss() -> None:
    logits, targets = drawn(0.1, 0.02, 100)
    targets[3:7] = UNKNOWN
    found = fit_label_noise(logits, targets)
    least = loss(found, logits, targets)
    for field in ("scale", "shift", "missing", "wrong"):
        for factor in (0.9, 1.1):
            assert loss(found._replace(**{field: factor * getattr(found, field)}), logits, targets) > least - 1e-3


def test_bayes_by_hand_and_no_label() -> None:
    noise = LabelNoise(2.0, 1.0, 0.1, 0.01)
    chance = 1 / (1 + math.exp(-0.4))
    present = chance * 0.9 / (chance * 0.9 + (1 - chance) * 0.01)
    absent = (1 - chance) * 0.99 / ((1 - chance) * 0.99 + chance * 0.1)
    logits = torch.tensor([-0.3, -0.3])
    found = noise.right(noise.calibrated(logits), torch.tensor([True, False]))
    torch.testing.assert_close(found, torch.tensor([present, absent]))
    *numbers, shifts = fit_label_noise(torch.zeros(2, 3), torch.full((2, 3), UNKNOWN))
    assert numbers == pytest.approx((1.0, 0.0, 0.01, 0.01, 0.0), abs=1e-3)
    assert shifts == pytest.approx((0.0, 0.0, 0.0))
    half = noise._replace(told=0.5)
    torch.testing.assert_close(half.calibrated(torch.tensor([-0.3]), torch.tensor([0.5])), torch.tensor([1.2]))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_mixture_is_recovered(share) -> None:
    """Labels are drawn from a mixture of two logits; the fit finds its share."""
    random = torch.Generator().manual_seed(1)
    alone, told = (4 * torch.randn(2, 20_000, 6, generator=random) - 2).unbind()
    there = torch.rand(alone.shape, generator=random) < ((1 - share) * alone + share * told).sigmoid()
    said = there & (torch.rand(alone.shape, generator=random) > 0.05)
    found = fit_label_noise(alone, said, told)
    assert found.told == pytest.approx(share, abs=0.02)
    assert found.scale == pytest.approx(1, abs=0.05)
    assert found.missing == pytest.approx(0.05, rel=0.15)


def test_shifts_of_classes_are_recovered_and_rare_classes_keep_theirs_near_zero() -> None:
    random = torch.Generator().manual_seed(1)
    logits = 4 * torch.randn(20_000, 3, generator=random) - 2
    true = torch.tensor([0.8, -0.8, 3.0])
    said = (torch.rand(logits.shape, generator=random) < (logits + true).sigmoid()).to(torch.uint8)
    said[2:, 2] = UNKNOWN  # of the last class two labels are known
    found = fit_label_noise(logits, said)
    shifts = torch.tensor(found.class_shifts)
    torch.testing.assert_close((found.shift + shifts)[:2], true[:2], atol=0.2, rtol=0)
    assert abs(float(shifts[2])) < 1
    calibrated = found.calibrated(logits)
    torch.testing.assert_close(calibrated, found.scale * logits + found.shift + shifts)

"""Cross-entropy and ASL from logits: the same where scores are in range, and a slope where they have none left."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operands import seeds
from small_run import small_config
from torch import Tensor

from contextcaps.data.loading import Batch
from contextcaps.models import create_model
from contextcaps.training.losses import LOSSES, TAKE_LOGITS, asymmetric_loss, length_cross_entropy, two_way_loss
from contextcaps.training.step import TaggingModule

every_loss = pytest.mark.parametrize("name", sorted(TAKE_LOGITS))
OF_SINGLE_PAIRS = sorted(TAKE_LOGITS - {"two-way"})  # a present pair alone costs something


def draw(seed: int, batch: int = 3, classes: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, targets, and weights for the classes."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(batch, classes, generator=generator, dtype=torch.float64)
    return logits, torch.rand(logits.shape, generator=generator) < 0.4, torch.rand(classes, generator=generator) + 0.5


@given(seed=seeds)
@every_loss
def test_the_same_as_from_scores(name, seed) -> None:
    logits, targets, weights = draw(seed)
    logits.requires_grad_()
    values = [
        LOSSES[name](logits.sigmoid(), targets, class_weights=weights, **options)
        for options in ({}, {"logits": logits})
    ]
    torch.testing.assert_close(values[1], values[0])
    one, other = (torch.autograd.grad(value, logits, retain_graph=True)[0] for value in values)
    torch.testing.assert_close(other, one)


@given(seed=seeds, clip=st.sampled_from([0.0, 0.05, 0.2]), positive=st.sampled_from([0.0, 1.0]))
def test_asl_by_loops(seed, clip, positive) -> None:
    logits, targets, _ = draw(seed)
    total = 0.0
    for row, truth in zip(logits.tolist(), targets.tolist(), strict=True):
        for logit, present in zip(row, truth, strict=True):
            chance = 1 / (1 + math.exp(-logit))
            shifted = max(chance - clip, 0.0)
            total -= (1 - chance) ** positive * math.log(chance) if present else shifted**4 * math.log(1 - shifted)
    found = asymmetric_loss(logits.sigmoid(), targets, 4.0, positive, clip, logits=logits)
    assert float(found) == pytest.approx(total / len(logits), rel=1e-6)


@pytest.mark.parametrize("name", OF_SINGLE_PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_present_class_with_a_score_of_nothing_still_has_a_slope(name, dtype) -> None:
    """At −40 the score's own cross-entropy is flat; from the logit the slope is that of a line."""
    logits = torch.full((1, 1), -40.0, dtype=dtype, requires_grad=True)
    targets = torch.ones(1, 1)
    (flat,) = torch.autograd.grad(LOSSES[name](logits.sigmoid(), targets), logits)
    (steep,) = torch.autograd.grad(LOSSES[name](logits.sigmoid(), targets, logits=logits), logits)
    assert abs(float(flat)) < 1e-6
    assert float(steep) == pytest.approx(-1, abs=1e-3)


def test_two_way_loss_has_a_slope_where_a_present_class_has_a_score_of_nothing() -> None:
    logits = torch.tensor([[-40.0, 0.0]], requires_grad=True)
    two_way_loss(logits.sigmoid(), torch.tensor([[1, 0]]), logits=logits).backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[-1.0, 1.0]]))


@every_loss
@pytest.mark.parametrize("present", [0, 1])
@pytest.mark.parametrize("logit", [-1e4, -100.0, 0.0, 100.0, 1e4])
def test_finite_at_any_logit(name, present, logit) -> None:
    logits = torch.full((2, 3), logit, requires_grad=True)
    loss = LOSSES[name](logits.sigmoid(), torch.full((2, 3), present), logits=logits)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_an_absent_class_that_is_sure_has_a_slope_in_cross_entropy() -> None:
    logits = torch.full((1, 1), 40.0, requires_grad=True)
    length_cross_entropy(logits.sigmoid(), torch.zeros(1, 1), logits=logits).backward()
    assert float(logits.grad) == pytest.approx(1)


@every_loss
def test_logits_of_another_shape_are_refused(name) -> None:
    with pytest.raises(ValueError, match="expected shape"):
        LOSSES[name](torch.full((2, 3), 0.5), torch.ones(2, 3), logits=torch.zeros(2, 1))


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "two-way"])
def test_a_training_step_takes_logits_where_the_loss_does(tmp_path, name) -> None:
    """All classes are present and all scores nearly 0: only a loss from logits still moves the last layer's bias."""
    config = small_config(tmp_path / "run", tmp_path, model="gap", loss=name, augmentation=False)
    module = TaggingModule(create_model("gap", 3, 32, "small"), config, 10)
    with torch.no_grad():
        module.network.head.linear.bias.fill_(-60.0)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    batch = Batch(images, torch.ones(2, 3, dtype=torch.uint8), np.arange(2), ("a", "b"), epoch=0, step=0)
    module.training_step(batch, 0)["loss"].backward()
    assert bool((module.network.head.linear.bias.grad.abs() > 0.1).all()) == (name in TAKE_LOGITS)

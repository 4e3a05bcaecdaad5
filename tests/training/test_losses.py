"""Losses: the reference, values by hand, the edges of the scores, and how classes and images are summed."""

import math
from collections.abc import Callable

import pytest
import torch
from contract import DTYPES, assert_refused
from hypothesis import given
from hypothesis import strategies as st
from operands import Sizes, assert_equals_reference, by_reference, draw_probabilities, seeds, sizes_up_to
from torch import Tensor

import reference
from contextcaps.data.unknown import UNKNOWN
from contextcaps.models import model_config
from contextcaps.training.losses import (
    LOSSES,
    TAKE_LOGITS,
    asymmetric_loss,
    length_cross_entropy,
    margin_loss,
    resolve_loss,
    spread_loss,
    two_way_loss,
)

Loss = Callable[..., Tensor]

SIZES = {"B": 3, "J": 5}
REFERENCES = {
    "margin": reference.margin_loss,
    "bce": reference.length_cross_entropy,
    "asl": reference.asymmetric_loss,
    "spread": reference.spread_loss,
    "two-way": reference.two_way_loss,
}
SUMMED = {name: loss for name, loss in LOSSES.items() if name != "two-way"}  # over pairs of image and class
every_summed_loss = pytest.mark.parametrize("loss", SUMMED.values(), ids=SUMMED)
WITH_WHOLE_GRADIENT = {name: loss for name, loss in LOSSES.items() if name != "asl"}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def draw_targets(sizes: Sizes, seed: int) -> Tensor:
    return draw_probabilities("B J", sizes, seed) < 0.4


def fixed_scores_and_targets() -> tuple[Tensor, Tensor]:
    """Scores away from the kinks of all losses, with both present and absent classes in each image."""
    scores = torch.tensor([[0.95, 0.32, 0.21, 0.64, 0.5], [0.15, 0.85, 0.03, 0.4, 0.27]], dtype=torch.float64)
    targets = torch.tensor([[1, 0, 1, 0, 0], [0, 1, 0, 1, 0]])
    return scores, targets


def test_losses_have_the_names_that_configurations_use() -> None:
    expected = {
        "margin": margin_loss,
        "bce": length_cross_entropy,
        "asl": asymmetric_loss,
        "spread": spread_loss,
        "two-way": two_way_loss,
    }
    assert expected == LOSSES


@given(sizes=sizes_up_to(B=4, J=6), seed=seeds, edge=st.booleans())
@pytest.mark.parametrize("name", LOSSES)
def test_loss_equals_reference(sizes: Sizes, seed: int, edge: bool, name: str) -> None:
    scores, targets = draw_probabilities("B J", sizes, seed), draw_targets(sizes, seed + 1)
    if edge:
        scores = scores.round()  # exactly 0 and 1
    assert_equals_reference(LOSSES[name](scores, targets), by_reference(REFERENCES[name], scores, targets))


@given(sizes=sizes_up_to(B=3, J=4), seed=seeds, first=st.floats(0.01, 0.9), second=st.floats(0.01, 0.9))
def test_loss_with_other_settings_equals_reference(sizes: Sizes, seed: int, first: float, second: float) -> None:
    scores, targets = draw_probabilities("B J", sizes, seed), draw_targets(sizes, seed + 1)
    settings = {
        "margin": {"positive": first, "negative": second, "down_weight": first + second},
        "bce": {"eps": first / 10},
        "asl": {"gamma_negative": 5 * first, "gamma_positive": 5 * second, "clip": first / 2, "eps": 1e-4},
        "spread": {"margin": first},
        "two-way": {"temperature": 5 * first, "eps": second / 10},
    }
    for name, chosen in settings.items():
        fast = LOSSES[name](scores, targets, **chosen)
        assert_equals_reference(fast, by_reference(REFERENCES[name], scores, targets, **chosen))


@pytest.mark.parametrize(
    ("loss", "scores", "targets", "expected"),
    [
        (margin_loss, [0.4], [1], 0.25),  # (0.9 - 0.4)²
        (margin_loss, [0.6], [0], 0.125),  # 0.5 · (0.6 - 0.1)²
        (margin_loss, [0.95, 0.05], [1, 0], 0.0),  # beyond both margins
        (margin_loss, [0.0, 0.0], [1, 0], 0.81),  # the frozen start: 0.9² for each positive
        (length_cross_entropy, [0.5, 0.5], [1, 0], 2 * math.log(2)),
        (length_cross_entropy, [0.25], [0], -math.log(0.75)),
        (asymmetric_loss, [0.8], [1], -math.log(0.8)),  # γ⁺ = 0
        (asymmetric_loss, [0.3], [0], -(0.25**4) * math.log(0.75)),  # p_m = 0.3 - 0.05
        (asymmetric_loss, [0.05], [0], 0.0),  # an easy negative costs nothing
        (spread_loss, [0.5, 0.4, 0.1], [1, 0, 0], 0.01),  # (0.2 - 0.1)², and a gap of 0.4
        (spread_loss, [0.5, 0.5, 0.5], [1, 1, 0], 0.08),  # two pairs of gap 0
        (spread_loss, [0.5, 0.6], [1, 1], 0.0),  # no absent class, no pair
        (two_way_loss, [0.5, 0.5], [1, 0], math.log(2)),  # logits of 0; nothing absent in the present class
        (two_way_loss, [0.5, 0.5, 0.5], [1, 1, 0], math.log(1 + 2**4)),  # T log(1 + 1) = log 2⁴
        (two_way_loss, [0.5, 0.9], [0, 0], 0.0),  # nothing present
    ],
)
def test_loss_by_hand(loss: Loss, scores: list[float], targets: list[int], expected: float) -> None:
    value = loss(torch.tensor([scores], dtype=torch.float64), torch.tensor([targets]))
    assert value.item() == pytest.approx(expected, rel=1e-9, abs=1e-15)


@every_loss
def test_targets_may_be_of_any_type(loss: Loss) -> None:
    """Bool, whole numbers and floats mean the same."""
    scores, targets = fixed_scores_and_targets()
    expected = loss(scores, targets.double())
    assert expected > 0
    for dtype in (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32):
        assert loss(scores, targets.to(dtype)).equal(expected), dtype


@every_loss
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16], ids=str)
def test_scores_of_exactly_zero_and_one_are_finite(
    loss: Loss, dtype: torch.dtype, autocast: torch.dtype | None
) -> None:
    """Value and gradient, for present and absent classes, with and without autocast."""
    scores = torch.tensor([[0.0, 0.0, 1.0, 1.0, 0.5]], dtype=dtype, requires_grad=True)
    targets = torch.tensor([[1, 0, 1, 0, 1]])
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        value = loss(scores, targets)
    value.backward()
    assert value.isfinite()
    assert value > 0
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert scores.grad.dtype == dtype
    assert scores.grad.isfinite().all()
    assert scores.grad.any()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 4.0])
def test_asymmetric_loss_is_finite_for_any_exponent(gamma: float) -> None:
    """Also between 0 and 1, where the slope of a power is infinite at zero."""
    scores = torch.tensor([[0.0, 0.0, 1.0, 1.0, 0.03, 0.05]], requires_grad=True)
    value = asymmetric_loss(scores, torch.tensor([[1, 0, 1, 0, 0, 0]]), gamma_negative=gamma, gamma_positive=gamma)
    value.backward()
    assert value.isfinite()
    assert scores.grad.isfinite().all()


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_scores_lose_nothing_in_the_loss(loss: Loss, dtype: torch.dtype) -> None:
    """The loss is computed in float32, whatever the scores come in, also where a half-precision sum would drift."""
    sizes = {"B": 4, "J": 1000}
    scores, targets = draw_probabilities("B J", sizes, 1, dtype), draw_probabilities("B J", sizes, 2) < 0.01
    with torch.autocast("cpu", dtype):
        value = loss(scores, targets)
    # log(1 - p) at p = 1 - 1e-6 has a thousandth of float32's digits left.
    assert value.item() == pytest.approx(loss(scores.double(), targets).item(), rel=1e-4)


@every_loss
@pytest.mark.parametrize("present", [False, True])
def test_images_with_no_or_all_classes_present_are_finite(loss: Loss, present: bool) -> None:
    scores = draw_probabilities("B J", SIZES, 1).requires_grad_()
    value = loss(scores, torch.full((3, 5), present))
    value.backward()
    assert value.isfinite()
    assert scores.grad.isfinite().all()


@every_summed_loss
def test_doubling_the_batch_leaves_the_loss(loss: Loss) -> None:
    """The mean over images."""
    scores, targets = fixed_scores_and_targets()
    doubled = loss(torch.cat([scores, scores]), torch.cat([targets, targets]))
    torch.testing.assert_close(doubled, loss(scores, targets))


@pytest.mark.parametrize(("name", "factor"), [("margin", 2), ("bce", 2), ("asl", 2), ("spread", 4)])
def test_doubling_the_classes_doubles_the_loss(name: str, factor: int) -> None:
    """The sum over classes; the spread loss sums over pairs of classes, of which there are four times as many."""
    scores, targets = fixed_scores_and_targets()
    doubled = LOSSES[name](torch.cat([scores, scores], dim=1), torch.cat([targets, targets], dim=1))
    torch.testing.assert_close(doubled, factor * LOSSES[name](scores, targets))


@every_summed_loss
def test_loss_is_the_mean_of_each_image_alone(loss: Loss) -> None:
    scores, targets = fixed_scores_and_targets()
    alone = [loss(scores[image : image + 1], targets[image : image + 1]) for image in range(2)]
    torch.testing.assert_close(loss(scores, targets), sum(alone) / 2)


@every_loss
def test_permuting_classes_leaves_the_loss(loss: Loss) -> None:
    scores, targets = fixed_scores_and_targets()
    order = [3, 0, 4, 2, 1]
    torch.testing.assert_close(loss(scores[:, order], targets[:, order]), loss(scores, targets))


@pytest.mark.parametrize("loss", WITH_WHOLE_GRADIENT.values(), ids=WITH_WHOLE_GRADIENT)
def test_gradients_equal_finite_differences(loss: Loss) -> None:
    scores, targets = fixed_scores_and_targets()
    assert torch.autograd.gradcheck(lambda given_scores: loss(given_scores, targets), scores.requires_grad_())


@every_loss
def test_loss_falls_towards_the_targets(loss: Loss) -> None:
    """Right scores cost less than undecided ones, and those less than wrong ones."""
    targets = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    right, undecided, wrong = (loss(0.5 + scale * (targets - 0.5), targets) for scale in (0.8, 0.0, -0.8))
    assert right < undecided < wrong


@every_loss
@pytest.mark.parametrize(
    ("scores", "targets", "name", "actual"),
    [
        (torch.zeros(3), torch.zeros(3), "scores", "[3]"),
        (torch.zeros(2, 3, 1), torch.zeros(2, 3, 1), "scores", "[2, 3, 1]"),
        (torch.zeros(2, 3), torch.zeros(2, 4), "targets", "[2, 4]"),
        (torch.zeros(2, 3), torch.zeros(1, 3), "targets", "[1, 3]"),
        (torch.zeros(2, 3), torch.zeros(2), "targets", "[2]"),
        (torch.zeros(2, 3), [[0, 1, 0], [1, 0, 0]], "targets", "list"),
        (torch.zeros(0, 3), torch.zeros(0, 3), "scores", "[0, 3]"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3), "scores", "int64"),
        (torch.full((2, 3), float("nan")), torch.zeros(2, 3), "scores", "NaN in 6 of 6"),
        (torch.zeros(2, 3), torch.full((2, 3), float("nan")), "targets", "NaN in 6 of 6"),
    ],
    ids=[
        "scores one dimension",
        "scores three dimensions",
        "other classes",
        "other batch",
        "class indices",
        "targets in a list",
        "no image",
        "whole numbers",
        "scores NaN",
        "targets NaN",
    ],
)
def test_wrong_input_is_refused(loss: Loss, scores: Tensor, targets: object, name: str, actual: str) -> None:
    assert_refused(lambda: loss(scores, targets), name, actual)


CLASS_WEIGHTS = torch.tensor([0.5, 2.0, 0.0, 1.25, 7.0], dtype=torch.float64)


@given(sizes=sizes_up_to(B=4, J=6), seed=seeds, left_out=st.integers(0, 63))
def test_two_way_loss_leaves_out_classes_without_weight(sizes, seed, left_out) -> None:
    scores, targets = draw_probabilities("B J", sizes, seed), draw_targets(sizes, seed + 1)
    classes = [j for j in range(sizes["J"]) if not left_out >> j & 1] or [0]
    weights = torch.zeros(sizes["J"], dtype=torch.float64)
    weights[classes] = 1
    alone = two_way_loss(scores[:, classes], targets[:, classes])
    torch.testing.assert_close(two_way_loss(scores, targets, class_weights=weights), alone)


@given(sizes=sizes_up_to(B=4, J=6), seed=seeds)
@pytest.mark.parametrize("name", SUMMED)
def test_weighted_loss_equals_a_loop_over_classes(sizes: Sizes, seed: int, name: str) -> None:
    """The loss is linear in the weights: each class's own part, by the plain-loop reference, times its weight."""
    scores, targets = draw_probabilities("B J", sizes, seed), draw_targets(sizes, seed + 1)
    weights = 3 * draw_probabilities("J", sizes, seed + 2)
    expected = 0.0
    for j in range(sizes["J"]):
        if name == "spread":  # the pairs of which class j is the present one: the other present classes left out
            for b in range(sizes["B"]):
                if targets[b, j]:
                    others = [other for other in range(sizes["J"]) if other == j or not targets[b, other]]
                    alone = by_reference(REFERENCES[name], scores[b : b + 1, others], targets[b : b + 1, others])
                    expected += float(weights[j]) * float(alone) / sizes["B"]
        else:
            alone = by_reference(REFERENCES[name], scores[:, j : j + 1], targets[:, j : j + 1])
            expected += float(weights[j]) * float(alone)
    assert LOSSES[name](scores, targets, class_weights=weights).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@every_loss
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_class_weights_of_one_change_nothing(loss: Loss, dtype: torch.dtype) -> None:
    """Bit for bit, value and gradient."""
    found = []
    for weights in (None, torch.ones(5)):
        scores = draw_probabilities("B J", SIZES, 1, dtype).requires_grad_()
        value = loss(scores, draw_targets(SIZES, 2), class_weights=weights)
        value.backward()
        found.append((value, scores.grad))
    assert found[0][0].equal(found[1][0])
    assert found[0][1].equal(found[1][1])


@every_loss
def test_class_weights_of_zero_leave_classes_out(loss: Loss) -> None:
    """Of the loss, and of the gradient where a class is present."""
    scores, targets = fixed_scores_and_targets()
    assert loss(scores, targets, class_weights=torch.zeros(5)) == 0
    scores.requires_grad_()
    only_absent = targets.clone()
    only_absent[:, 1:] = 0
    loss(scores, only_absent, class_weights=torch.tensor([0.0, 1, 1, 1, 1])).backward()
    assert not scores.grad[:, 0].any()


def test_the_weights_of_the_asymmetric_loss_pass_no_gradient() -> None:
    scores, targets = fixed_scores_and_targets()
    scores.requires_grad_()
    (found,) = torch.autograd.grad(asymmetric_loss(scores, targets, gamma_positive=1.0), scores)
    p, shifted = scores.detach(), (scores.detach() - 0.05).clamp_min(0)
    expected = torch.where(targets > 0, -(1 - p) / p, shifted**4 / (1 - shifted) * (shifted > 0)) / len(scores)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("loss", WITH_WHOLE_GRADIENT.values(), ids=WITH_WHOLE_GRADIENT)
def test_gradients_with_class_weights_equal_finite_differences(loss: Loss) -> None:
    scores, targets = fixed_scores_and_targets()
    assert torch.autograd.gradcheck(
        lambda given_scores: loss(given_scores, targets, class_weights=CLASS_WEIGHTS), scores.requires_grad_()
    )


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_class_weights_and_scores_are_computed_in_float32(loss: Loss, dtype: torch.dtype) -> None:
    sizes = {"B": 4, "J": 300}
    scores, targets = draw_probabilities("B J", sizes, 1, dtype), draw_targets(sizes, 2)
    weights = (5 * draw_probabilities("J", sizes, 3)).to(dtype)
    with torch.autocast("cpu", dtype):
        value = loss(scores, targets, class_weights=weights)
    assert value.dtype == torch.float32
    exact = loss(scores.double(), targets, class_weights=weights.double())
    assert value.item() == pytest.approx(exact.item(), rel=1e-4)


@every_loss
@pytest.mark.parametrize(
    ("weights", "actual"),
    [
        (torch.ones(4), "[4]"),
        (torch.ones(1, 5), "[1, 5]"),
        (torch.ones(5, dtype=torch.int64), "int64"),
        ([1.0] * 5, "list"),
        (torch.tensor([1, 1, -0.5, 1, 1]), "-0.5"),
        (torch.tensor([1, 1, float("inf"), 1, 1]), "inf"),
        (torch.tensor([1, 1, float("nan"), 1, 1]), "NaN in 1 of 5"),
    ],
    ids=["other classes", "two dimensions", "whole numbers", "list", "negative", "infinite", "NaN"],
)
def test_wrong_class_weights_are_refused(loss: Loss, weights: object, actual: str) -> None:
    scores, targets = fixed_scores_and_targets()
    assert_refused(lambda: loss(scores, targets, class_weights=weights), "class_weights", actual)


def test_auto_is_margin_for_lengths_and_cross_entropy_for_sigmoids() -> None:
    assert resolve_loss("auto", model_config("capsnet", 3)) == "margin"
    assert resolve_loss("auto", model_config("capsnet", 3, field={})) == "bce"
    assert resolve_loss("auto", model_config("gap", 3)) == "bce"
    assert resolve_loss("asl", model_config("capsnet", 3)) == "asl"


@given(sizes=sizes_up_to(B=4, J=6), seed=seeds, share=st.sampled_from([0.0, 0.3, 0.9, 1.0]), by_logits=st.booleans())
@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"two-way"}))
def test_unknown_labels_are_not_there(sizes: Sizes, seed: int, share: float, by_logits: bool, name: str) -> None:
    """The loss of an image is that of the image with its known classes alone, and the rest has a gradient of zero."""
    logits = torch.logit(draw_probabilities("B J", sizes, seed), eps=1e-4).requires_grad_()
    unknown = draw_probabilities("B J", sizes, seed + 2) < share
    targets = draw_targets(sizes, seed + 1).to(torch.uint8)
    options = {"logits": logits} if by_logits and name in TAKE_LOGITS else {}
    value = LOSSES[name](logits.sigmoid(), targets.masked_fill(unknown, UNKNOWN), **options)
    value.backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[unknown] == 0).all()

    alone = logits.detach().clone().requires_grad_()
    expected = torch.zeros((), dtype=value.dtype)
    for b, kept in enumerate(~unknown):
        if kept.any():
            own = alone[b : b + 1, kept]
            options = {"logits": own} if by_logits and name in TAKE_LOGITS else {}
            expected = expected + LOSSES[name](own.sigmoid(), targets[b : b + 1, kept], **options) / len(targets)
    torch.testing.assert_close(value, expected)
    if expected.requires_grad:
        expected.backward()
        torch.testing.assert_close(logits.grad, alone.grad)


@given(sizes=sizes_up_to(B=4, J=6), seed=seeds, share=st.sampled_from([0.0, 0.3, 0.9, 1.0]), by_logits=st.booleans())
def test_the_two_way_loss_without_unknown_labels(sizes: Sizes, seed: int, share: float, by_logits: bool) -> None:
    """It compares images within a class, too, so it is that of the whole batch with those pairs weighed by nothing."""
    logits = torch.logit(draw_probabilities("B J", sizes, seed), eps=1e-4).requires_grad_()
    unknown = draw_probabilities("B J", sizes, seed + 2) < share
    targets = draw_targets(sizes, seed + 1).to(torch.uint8)
    options = {"logits": logits} if by_logits else {}
    value = two_way_loss(logits.sigmoid(), targets.masked_fill(unknown, UNKNOWN), **options)
    (gradient,) = torch.autograd.grad(value, logits)
    assert gradient.isfinite().all()
    assert (gradient[unknown] == 0).all()
    expected = two_way_loss(logits.sigmoid(), targets, class_weights=(~unknown).double(), **options)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logits)[0])


@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"two-way"}))
def test_class_weights_and_unknown_labels_go_together(name: str) -> None:
    loss = LOSSES[name]
    scores, targets = fixed_scores_and_targets()
    targets[0, 3] = UNKNOWN
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    kept = [0, 1, 2, 4]
    expected = loss(scores[:1, kept], targets[:1, kept], class_weights=weights[kept])
    expected = (expected + loss(scores[1:], targets[1:], class_weights=weights)) / 2
    torch.testing.assert_close(loss(scores, targets, class_weights=weights), expected)


@every_loss
def test_targets_that_are_neither_known_nor_unknown_are_refused(loss: Loss) -> None:
    scores, targets = fixed_scores_and_targets()
    targets[0, 3] = 254
    with pytest.raises(ValueError, match="targets"):
        loss(scores, targets)

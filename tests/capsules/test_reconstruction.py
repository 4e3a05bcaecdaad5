"""Reconstruction decoder: what is masked, what comes out."""

import pytest
import torch
from contract import DTYPES, assert_refused
from operands import draw

from contextcaps.capsules import ReconstructionDecoder, mask_decisions

SIZES = {"B": 2, "J": 4, "I": 3}
PRESENT = torch.tensor([[True, False, True, False], [False, False, False, True]])


def decoder() -> ReconstructionDecoder:
    torch.manual_seed(0)
    return ReconstructionDecoder(4, 3, image_shape=(3, 5, 6), hidden=(16, 32))


def test_absent_classes_are_masked_and_get_no_gradient() -> None:
    """The image is rebuilt from the present classes alone."""
    decisions = draw("B J I", SIZES, 1, torch.float32).requires_grad_()
    image = decoder()(decisions, PRESENT)
    (image * draw("B C H W", {"B": 2, "C": 3, "H": 5, "W": 6}, 2, torch.float32)).sum().backward()
    assert not decisions.grad[~PRESENT].any()
    assert decisions.grad[PRESENT].all()


def test_absent_classes_do_not_change_the_image() -> None:
    """Whatever their capsules hold."""
    decisions = draw("B J I", SIZES, 1, torch.float32)
    changed = torch.where(PRESENT[..., None], decisions, decisions + 5)
    module = decoder()
    assert module(decisions, PRESENT).equal(module(changed, PRESENT))
    assert not module(decisions, PRESENT).equal(module(decisions, ~PRESENT))


def test_images_have_their_shape_and_values_between_zero_and_one() -> None:
    image = decoder()(10 * draw("B J I", SIZES, 1, torch.float32), PRESENT)
    assert image.shape == (2, 3, 5, 6)
    assert image.min() >= 0
    assert image.max() <= 1
    assert image.std() > 0.01


def test_the_papers_layers_by_default() -> None:
    """512, 1024, pixels."""
    sizes = [layer.out_features for layer in ReconstructionDecoder(10, 16, (1, 28, 28)).layers[::2]]
    assert sizes == [512, 1024, 784]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.float64], ids=str)
def test_present_may_be_of_any_type(dtype: torch.dtype) -> None:
    decisions = draw("B J I", SIZES, 1, torch.float32)
    masked = mask_decisions(decisions, PRESENT.to(dtype))
    assert masked.dtype == torch.float32
    assert masked.equal(torch.where(PRESENT[..., None], decisions, 0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_parameter_gets_a_finite_gradient(dtype: torch.dtype) -> None:
    module = decoder().to(dtype)
    image = module(draw("B J I", SIZES, 1, dtype), torch.ones(2, 4))
    image.double().square().sum().backward()
    assert image.dtype == dtype
    assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("decisions", "present", "name", "actual"),
    [
        (torch.zeros(2, 4), PRESENT, "decisions", "[2, 4]"),
        (torch.zeros(2, 4, 3, dtype=torch.int64), PRESENT, "decisions", "int64"),
        (torch.full((2, 4, 3), float("nan")), PRESENT, "decisions", "NaN"),
        (torch.zeros(2, 4, 3), PRESENT[:1], "present", "[1, 4]"),
        (torch.zeros(2, 4, 3), PRESENT.tolist(), "present", "list"),
        (torch.zeros(2, 5, 3), torch.ones(2, 5), "decisions", "[2, 5, 3]"),
        (torch.zeros(2, 4, 2), PRESENT, "decisions", "[2, 4, 2]"),
        (torch.zeros(2, 4, 3, dtype=torch.float64), PRESENT, "decisions", "float64"),
    ],
    ids=["dimensions", "whole numbers", "NaN", "present", "present in a list", "classes", "attributes", "dtype"],
)
def test_wrong_input_is_refused(decisions: torch.Tensor, present: object, name: str, actual: str) -> None:
    assert_refused(lambda: decoder()(decisions, present), name, actual)


@pytest.mark.parametrize(("name", "value"), [("classes", 0), ("attributes", -1), ("image_shape", (3, 0, 6))])
def test_settings_that_do_not_fit_are_refused(name: str, value: object) -> None:
    settings = {"classes": 4, "attributes": 3, "image_shape": (3, 5, 6), name: value}
    assert_refused(lambda: ReconstructionDecoder(**settings), name)

"""Primary capsules: the regrouping, the order of k, and what does not fit."""

import pytest
import torch
from contract import DTYPES, assert_refused
from hypothesis import given
from operands import Sizes, assert_equals_reference, by_reference, draw, seeds, sizes_up_to

import reference
from contextcaps.capsules import PrimaryCapsules, group_capsules, lengths


@given(sizes=sizes_up_to(B=2, D=3, A=3, H=3, W=4), seed=seeds)
def test_group_capsules_equals_reference(sizes: Sizes, seed: int) -> None:
    maps = draw("B D A H W", sizes, seed).flatten(1, 2)  # [B, D·A, H, W]
    grouped = group_capsules(maps, sizes["D"], sizes["A"])
    assert_equals_reference(grouped, by_reference(reference.primary_capsules, maps, sizes["D"], sizes["A"]))


@given(sizes=sizes_up_to(B=2, D=2, A=3, H=3, W=3, C=2), seed=seeds)
def test_primary_capsules_equal_reference(sizes: Sizes, seed: int) -> None:
    """Convolution, regrouping, squash."""
    module = PrimaryCapsules(sizes["C"], sizes["D"], sizes["A"], kernel_size=3, stride=1, padding=1).double()
    module.convolution.bias.data = draw("D A", sizes, seed + 1).flatten()
    features = draw("B C H W", sizes, seed)
    capsules = module(features)
    grouped = by_reference(reference.primary_capsules, module.convolution(features).detach(), sizes["D"], sizes["A"])
    for image, image_of_reference in zip(capsules, grouped, strict=True):
        for capsule, vector in zip(image, image_of_reference, strict=True):
            assert_equals_reference(capsule, by_reference(reference.squash, vector))


def test_capsules_are_in_type_major_order() -> None:
    """Two types of two attributes on a 1×2 grid: k = 0, 1 are type 0 at x = 0, 1, and k = 2, 3 are type 1."""
    maps = torch.tensor([[[[0.0, 1.0]], [[10.0, 11.0]], [[20.0, 21.0]], [[30.0, 31.0]]]])  # [1, D·A=4, 1, 2]
    expected = torch.tensor([[[0.0, 10.0], [1.0, 11.0], [20.0, 30.0], [21.0, 31.0]]])  # [1, K=4, A=2]
    assert group_capsules(maps, types=2, attributes=2).equal(expected)


def test_the_papers_setting_gives_1152_capsules() -> None:
    """28×28 input, 20×20 after the first 9×9 convolution, a 6×6 grid of 32 types after the second."""
    capsules = PrimaryCapsules(256, types=32, attributes=8)(torch.zeros(1, 256, 20, 20))
    assert capsules.shape == (1, 1152, 8)


def test_capsules_are_alive_at_the_start() -> None:
    """Features of unit size make capsules well away from length 0, and every parameter gets a gradient."""
    torch.manual_seed(0)
    module = PrimaryCapsules(16, types=4, attributes=8)
    capsules = module(draw("B C H W", {"B": 2, "C": 16, "H": 13, "W": 13}, 1, torch.float32))
    assert 0.5 < lengths(capsules).mean() < 1
    capsules.sum().backward()
    assert all(parameter.grad.all() for parameter in module.parameters())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zero_features_are_finite(dtype: torch.dtype) -> None:
    """An image of nothing makes capsules of length 0, with a finite gradient."""
    module = PrimaryCapsules(2, types=2, attributes=3, kernel_size=3).to(dtype)
    features = torch.zeros(1, 2, 7, 7, dtype=dtype, requires_grad=True)
    capsules = module(features)
    capsules.sum().backward()
    assert capsules.dtype == dtype
    assert not capsules.any()
    assert features.grad.isfinite().all()


@pytest.mark.parametrize(
    ("shape", "actual"),
    [
        ((2, 3, 9, 9), "[2, 3, 9, 9]"),
        ((4, 9, 9), "[4, 9, 9]"),
        ((2, 4, 8, 20), "8×20"),
        ((2, 4, 20, 8), "20×8"),
        ((0, 4, 9, 9), "[0, 4, 9, 9]"),
    ],
    ids=str,
)
def test_features_of_wrong_shape_are_refused(shape: tuple[int, ...], actual: str) -> None:
    assert_refused(lambda: PrimaryCapsules(4, types=2, attributes=3)(torch.zeros(shape)), "features", actual)


def test_features_of_another_dtype_are_refused() -> None:
    """Half-precision features for a float32 convolution, without autocast."""
    module = PrimaryCapsules(4, types=2, attributes=3)
    assert_refused(lambda: module(torch.zeros(1, 4, 9, 9, dtype=torch.float16)), "features", "float16", "float32")


@pytest.mark.parametrize(
    ("maps", "actual"),
    [
        (torch.zeros(2, 5, 3, 3), "[2, 5, 3, 3]"),
        (torch.zeros(6, 3, 3), "[6, 3, 3]"),
        (torch.zeros(2, 6, 3, 3, dtype=torch.int32), "int32"),
        (torch.full((1, 6, 1, 1), float("nan")), "NaN in 6 of 6"),
    ],
    ids=["channels", "dimensions", "whole numbers", "NaN"],
)
def test_maps_that_do_not_fit_are_refused(maps: torch.Tensor, actual: str) -> None:
    assert_refused(lambda: group_capsules(maps, types=2, attributes=3), "maps", actual)


@pytest.mark.parametrize("name", ["in_channels", "types", "attributes", "kernel_size", "stride"])
@pytest.mark.parametrize("value", [0, -1, 2.5])
def test_settings_that_are_no_counts_are_refused(name: str, value: object) -> None:
    settings = {"in_channels": 4, "types": 2, "attributes": 3, name: value}
    assert_refused(lambda: PrimaryCapsules(**settings), name, repr(value))

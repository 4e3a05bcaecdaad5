"""Votes: both forms of the weight against the reference, and against each other."""

import pytest
import torch
from contract import DTYPES, STANDARD, assert_close_to, assert_refused, tolerance
from hypothesis import given
from operands import Sizes, assert_equals_reference, by_reference, draw, permute_classes, seeds, sizes_up_to

import reference
from contextcaps.capsules import Votes, cast_votes

SIZES = {**STANDARD, "D": 3, "A": 5}


@given(sizes=sizes_up_to(B=3, K=4, A=3, J=4, I=3), seed=seeds)
def test_cast_votes_equals_reference(sizes: Sizes, seed: int) -> None:
    capsules, weight = draw("B K A", sizes, seed), draw("K A J I", sizes, seed + 1)
    assert_equals_reference(cast_votes(capsules, weight), by_reference(reference.cast_votes, capsules, weight))


@given(sizes=sizes_up_to(B=3, D=3, N=4, A=3, J=4, I=3), seed=seeds)
def test_cast_votes_with_shared_weight_equals_reference(sizes: Sizes, seed: int) -> None:
    capsules = draw("B D N A", sizes, seed).flatten(1, 2)  # [B, K = D·N, A]
    weight = draw("D A J I", sizes, seed + 1)
    assert_equals_reference(cast_votes(capsules, weight), by_reference(reference.cast_shared_votes, capsules, weight))


def test_shared_weight_equals_the_full_form_with_repeated_weights() -> None:
    """The capsules of one type lie together, so each type's matrix is repeated K/D times in a row."""
    capsules, weight = draw("B K A", SIZES, 1), draw("D A J I", SIZES, 2)
    repeated = weight.repeat_interleave(SIZES["K"] // SIZES["D"], dim=0)
    torch.testing.assert_close(cast_votes(capsules, weight), cast_votes(capsules, repeated))


def test_shared_weight_belongs_to_types() -> None:
    """Two types at two positions: type 1, capsules 2 and 3, has the weight that is not zero."""
    weight = torch.stack([torch.zeros(1, 1, 1), torch.ones(1, 1, 1)])  # [D=2, A=1, J=1, I=1]
    votes = cast_votes(torch.tensor([[[1.0], [2.0], [3.0], [4.0]]]), weight)
    assert votes.flatten().tolist() == [0.0, 0.0, 3.0, 4.0]


def test_shared_weight_takes_any_grid() -> None:
    """One weight, two image sizes."""
    module = Votes(2, 3, 4, 5)
    assert module(torch.ones(1, 2 * 3 * 3, 3)).shape == (1, 18, 4, 5)
    assert module(torch.ones(1, 2 * 7 * 5, 3)).shape == (1, 70, 4, 5)


@pytest.mark.parametrize("legend", ["K A J I", "D A J I"])
def test_gradients_equal_finite_differences(legend: str) -> None:
    sizes = {"B": 2, "K": 4, "D": 2, "A": 2, "J": 3, "I": 2}
    inputs = draw("B K A", sizes, 1).requires_grad_(), draw(legend, sizes, 2).requires_grad_()
    assert torch.autograd.gradcheck(cast_votes, inputs)


@pytest.mark.parametrize("legend", ["K A J I", "D A J I"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_dtype_is_finite_and_close_to_float64(legend: str, dtype: torch.dtype) -> None:
    capsules, weight = draw("B K A", SIZES, 1, dtype), draw(legend, SIZES, 2, dtype)
    votes = cast_votes(capsules.requires_grad_(), weight.requires_grad_())
    votes.double().square().sum().backward()
    assert votes.dtype == dtype
    assert_close_to(votes, cast_votes(capsules.double(), weight.double()), tolerance(dtype))
    assert capsules.grad.isfinite().all()
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("legend", ["K A J I", "D A J I"])
def test_permuting_classes_permutes_votes(legend: str) -> None:
    """Class j's votes come from class j's weights."""
    capsules, weight, order = draw("B K A", SIZES, 1), draw(legend, SIZES, 2), [2, 0, 3, 1]
    permuted = cast_votes(capsules, permute_classes(weight, legend, order))
    torch.testing.assert_close(permuted, permute_classes(cast_votes(capsules, weight), "B K J I", order))


def test_module_starts_with_the_spread_it_was_given() -> None:
    """Sabour's 0.1 by default, another where the network asks for it."""
    torch.manual_seed(0)
    for std in (0.1, 0.02):
        weight = Votes(8, 8, 16, 16, std=std).weight
        assert weight.shape == (8, 8, 16, 16)
        assert weight.std().item() == pytest.approx(std, rel=0.05)


def test_module_is_the_function() -> None:
    capsules, module = draw("B K A", SIZES, 1, torch.float32), Votes(6, 5, 4, 3)
    assert module(capsules).equal(cast_votes(capsules, module.weight))


@pytest.mark.parametrize(
    ("weight_shape", "actual"),
    [((4, 5, 4, 3), "[4, 5, 4, 3]"), ((12, 5, 4, 3), "[12, 5, 4, 3]"), ((6, 4, 4, 3), "[6, 4, 4, 3]"), ((6, 5, 4), "")],
    ids=["no divisor of K", "too many", "attributes", "dimensions"],
)
def test_weight_that_does_not_fit_is_refused(weight_shape: tuple[int, ...], actual: str) -> None:
    capsules = draw("B K A", SIZES, 1, torch.float32)
    assert_refused(lambda: cast_votes(capsules, torch.zeros(weight_shape)), "weight", actual, str(list(weight_shape)))


def test_wrong_values_are_refused() -> None:
    capsules, weight = draw("B K A", SIZES, 1), draw("K A J I", SIZES, 2)
    nan = torch.full_like(capsules, float("nan"))
    assert_refused(lambda: cast_votes(capsules.long(), weight), "capsules", "int64")
    assert_refused(lambda: cast_votes(capsules, weight.long()), "weight", "int64")
    assert_refused(lambda: cast_votes(nan, weight), "capsules", "NaN")
    assert_refused(lambda: cast_votes(capsules[0], weight), "capsules", "[6, 5]")
    assert_refused(lambda: cast_votes(capsules.float(), weight), "dtype", "float32", "float64")

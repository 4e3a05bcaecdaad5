"""Squash and lengths: the reference, and the two places where public capsule networks turn to NaN."""

import pytest
import torch
from contract import DTYPES, assert_refused
from hypothesis import given
from hypothesis import strategies as st
from operands import Sizes, assert_equals_reference, by_reference, draw, seeds, sizes_up_to
from torch import Tensor

import reference
from contextcaps.capsules import Lengths, Squash, lengths, squash

OPERATIONS = {"squash": squash, "lengths": lengths}
operations = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def value_and_gradient(operation: object, vectors: Tensor) -> tuple[Tensor, Tensor]:
    leaf = vectors.clone().requires_grad_()
    value = operation(leaf)
    value.float().sum().backward()
    return value.detach(), leaf.grad


@given(sizes=sizes_up_to(B=3, I=6), seed=seeds, exponent=st.integers(-6, 6))
def test_squash_equals_reference(sizes: Sizes, seed: int, exponent: int) -> None:
    vectors = draw("B I", sizes, seed) * 10.0**exponent
    for fast, vector in zip(squash(vectors), vectors, strict=True):
        assert_equals_reference(fast, by_reference(reference.squash, vector))


@given(sizes=sizes_up_to(B=3, I=6), seed=seeds, exponent=st.integers(-6, 6))
def test_lengths_equal_reference(sizes: Sizes, seed: int, exponent: int) -> None:
    vectors = draw("B I", sizes, seed) * 10.0**exponent
    for fast, vector in zip(lengths(vectors), vectors, strict=True):
        assert_equals_reference(fast, by_reference(reference.length, vector))


@operations
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
def test_any_dimension_can_hold_the_vectors(operation: object, dim: int) -> None:
    """`dim` means the same as moving that dimension to the end."""
    vectors = draw("B K I", {"B": 2, "K": 3, "I": 4}, 1)
    expected = operation(vectors.movedim(dim, -1))
    expected = expected.movedim(-1, dim) if operation is squash else expected
    torch.testing.assert_close(operation(vectors, dim=dim), expected)


@operations
def test_gradients_equal_finite_differences(operation: object) -> None:
    assert torch.autograd.gradcheck(operation, draw("B I", {"B": 3, "I": 4}, 1).requires_grad_())


@operations
@dtypes
def test_zero_vector_has_finite_value_and_gradient(operation: object, dtype: torch.dtype) -> None:
    """Both are zero, in every dtype, beside vectors that are not zero."""
    vectors = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0]], dtype=dtype)
    value, gradient = value_and_gradient(operation, vectors)
    assert value.dtype == dtype
    assert not value[0].any()
    assert not gradient[0].any()
    assert value[1].any()
    assert gradient.isfinite().all()


def test_squash_at_the_zero_vector_has_the_true_gradient() -> None:
    """s·|s|/(1+|s|²) is flat at zero: gradcheck passes there."""
    assert torch.autograd.gradcheck(squash, torch.zeros(2, 3, dtype=torch.float64, requires_grad=True))


@operations
@dtypes
@pytest.mark.parametrize("size", [1e-7, 6e-5, 1e-3])
def test_tiny_vectors_are_finite(operation: object, dtype: torch.dtype, size: float) -> None:
    """Near zero, where squares underflow in half precision."""
    value, gradient = value_and_gradient(operation, torch.full((2, 8), size, dtype=dtype))
    assert value.isfinite().all()
    assert gradient.isfinite().all()


@dtypes
@pytest.mark.parametrize("size", [300.0, 3e4, 6.5e4])
def test_large_vectors_are_squashed_to_length_one(dtype: torch.dtype, size: float) -> None:
    """|s|² overflows float16 from |s| = 256 on; the squash does not."""
    value, gradient = value_and_gradient(squash, torch.full((2, 16), size, dtype=dtype))
    torch.testing.assert_close(value.double().norm(dim=-1), torch.ones(2).double(), rtol=2e-3, atol=0)
    assert gradient.isfinite().all()


@dtypes
@pytest.mark.parametrize("size", [300.0, 1e4, 3e4])
def test_large_vectors_have_a_length(dtype: torch.dtype, size: float) -> None:
    """Never NaN; infinite only where the length itself is beyond the dtype."""
    value, gradient = value_and_gradient(lengths, torch.full((2, 16), size, dtype=dtype))
    expected = torch.tensor(4 * size, dtype=dtype)
    torch.testing.assert_close(value, expected.expand(2), rtol=1e-2, atol=0)
    torch.testing.assert_close(gradient, torch.full_like(gradient, 0.25), rtol=1e-2, atol=0)


@dtypes
def test_lengths_of_squashed_vectors_are_scores(dtype: torch.dtype) -> None:
    """Between 0 and 1, and growing with the vector."""
    growing = torch.linspace(0, 20, 30, dtype=torch.float64)[:, None] * torch.ones(8, dtype=torch.float64)
    scores = lengths(squash(growing.to(dtype)))
    assert (scores >= 0).all()
    assert (scores <= 1).all()
    assert (scores.diff() >= 0).all()


def test_squash_of_three_and_four() -> None:
    """|s| = 5: the length becomes 25/26, the direction stays."""
    torch.testing.assert_close(squash(torch.tensor([3.0, 4.0])), torch.tensor([0.6, 0.8]) * 25 / 26)


def test_modules_are_the_functions() -> None:
    """With the dimension they were given."""
    vectors = draw("B I", {"B": 3, "I": 4}, 1)
    assert Squash()(vectors).equal(squash(vectors))
    assert Squash(dim=0)(vectors).equal(squash(vectors, dim=0))
    assert Lengths()(vectors).equal(lengths(vectors))
    assert Lengths(dim=0)(vectors).equal(lengths(vectors, dim=0))


@operations
@pytest.mark.parametrize(
    ("vectors", "actual"),
    [
        (torch.ones(2, 3, dtype=torch.int64), "int64"),
        (torch.tensor([1.0, float("nan")]), "NaN in 1 of 2"),
        (torch.tensor(1.0), "[]"),
        (torch.zeros(3, 0), "[3, 0]"),
        ([1.0, 2.0], "list"),
    ],
    ids=["whole numbers", "NaN", "no dimension", "empty", "list"],
)
def test_wrong_input_is_refused(operation: object, vectors: object, actual: str) -> None:
    assert_refused(lambda: operation(vectors), "vectors", actual)

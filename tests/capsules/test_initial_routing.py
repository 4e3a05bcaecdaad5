"""Initial routing weights: the statistic, the shared kernel, and where a deviation of zero would divide."""

import pytest
import torch
from contract import DTYPES, assert_refused
from hypothesis import given
from hypothesis import strategies as st
from operands import Sizes, assert_equals_reference, by_reference, draw, seeds, sizes_up_to

import reference
from contextcaps.capsules import InitialRouting, capsule_statistic, initial_routing


@given(sizes=sizes_up_to(B=2, K=5, A=4), seed=seeds, eps=st.sampled_from([1e-3, 0.5]))
def test_capsule_statistic_equals_reference(sizes: Sizes, seed: int, eps: float) -> None:
    capsules = draw("B K A", sizes, seed)
    assert_equals_reference(capsule_statistic(capsules, eps), by_reference(reference.capsule_statistic, capsules, eps))


@given(
    sizes=sizes_up_to(B=2, D=2, H=4, W=3, A=3),
    seed=seeds,
    kernel_size=st.sampled_from([1, 3, 5]),
    bias=st.none() | st.floats(-1, 1),
)
def test_initial_routing_equals_reference(sizes: Sizes, seed: int, kernel_size: int, bias: float | None) -> None:
    capsules = draw("B D H W A", sizes, seed).flatten(1, 3)  # [B, K, A]
    kernel = draw("f f", {"f": kernel_size}, seed + 1)
    grid = (sizes["H"], sizes["W"])
    offset = None if bias is None else torch.tensor(bias, dtype=torch.float64)
    fast = initial_routing(capsules, kernel, grid, offset)
    # One attribute has no deviation: the statistic is a thousand times the mean, and the rounding as much larger.
    assert_equals_reference(
        fast, by_reference(reference.initial_routing, capsules, kernel, grid, bias or 0.0), rtol=1e-8
    )


def test_statistic_is_mean_over_population_deviation() -> None:
    """(1, 3) has mean 2 and population deviation 1; (2, 2) has deviation 0, which counts as ε."""
    statistic = capsule_statistic(torch.tensor([[[1.0, 3.0], [2.0, 2.0]]]), eps=1e-3)
    torch.testing.assert_close(statistic, torch.tensor([[2.0, 2000.0]]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [0.0, 0.1, -0.3])
def test_statistic_of_equal_attributes_is_finite(value: float, dtype: torch.dtype) -> None:
    """A deviation of zero is harmless, in value and in gradient."""
    capsules = torch.full((2, 3, 8), value, dtype=dtype, requires_grad=True)
    statistic = capsule_statistic(capsules)
    statistic.sum().backward()
    assert statistic.dtype == dtype
    torch.testing.assert_close(statistic.double(), capsules.detach().double().mean(dim=-1) / 1e-3, rtol=1e-2, atol=0)
    assert capsules.grad.isfinite().all()


@pytest.mark.parametrize("spread", [1.0, 1e-5], ids=["above eps", "below eps"])
def test_statistic_has_true_gradients(spread: float) -> None:
    capsules = (0.5 + spread * draw("B K A", {"B": 2, "K": 3, "A": 4}, 1)).requires_grad_()
    assert torch.autograd.gradcheck(capsule_statistic, capsules)


def test_initial_routing_has_true_gradients() -> None:
    sizes = {"B": 2, "K": 2 * 3 * 2, "A": 3, "f": 3}
    capsules, kernel = draw("B K A", sizes, 1).requires_grad_(), draw("f f", sizes, 2).requires_grad_()
    bias = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *operands: initial_routing(operands[0], operands[1], (3, 2), operands[2]), (capsules, kernel, bias)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_module_is_finite_in_each_dtype(dtype: torch.dtype) -> None:
    module = InitialRouting(grid=4, types=2).to(dtype)
    capsules = draw("B K A", {"B": 2, "K": 32, "A": 8}, 1, dtype).requires_grad_()
    weights = module(capsules)
    weights.sum().backward()
    assert weights.dtype == dtype
    assert weights.isfinite().all()
    assert capsules.grad.isfinite().all()
    assert module.kernel.grad.isfinite().all()


def test_one_kernel_is_shared_over_types() -> None:
    """Exchanging two types exchanges their weights, and 25 numbers are all there is to learn."""
    module = InitialRouting(grid=(3, 4), types=2)
    assert sum(parameter.numel() for parameter in module.parameters()) == 25
    capsules = draw("B K A", {"B": 2, "K": 24, "A": 8}, 1, torch.float32)
    exchanged = torch.cat([capsules[:, 12:], capsules[:, :12]], dim=1)
    weights = module(capsules)
    torch.testing.assert_close(module(exchanged), torch.cat([weights[:, 12:], weights[:, :12]], dim=1))


def test_types_do_not_mix() -> None:
    """A capsule's weight hears of its own type's neighbours only."""
    capsules = draw("B K A", {"B": 1, "K": 24, "A": 8}, 1, torch.float32).requires_grad_()
    InitialRouting(grid=(3, 4), types=2)(capsules)[:, :12].sum().backward()
    assert capsules.grad[:, :12].any()
    assert not capsules.grad[:, 12:].any()


def test_module_with_a_start_gives_every_capsule_that_weight() -> None:
    """The kernel starts at zero, and gets a gradient all the same."""
    module = InitialRouting(grid=4, types=2, start=0.25)
    capsules = draw("B K A", {"B": 3, "K": 32, "A": 8}, 1, torch.float32)
    weights = module(capsules)
    assert weights.equal(torch.full((3, 32), 0.25))
    (weights * draw("B K", {"B": 3, "K": 32}, 2, torch.float32)).sum().backward()
    assert module.kernel.grad.all()
    assert module.bias.grad.all()


def test_module_takes_another_grid() -> None:
    """The kernel has no grid of its own, so a network takes any image size."""
    module = InitialRouting(grid=4, types=2)
    capsules = draw("B K A", {"B": 1, "K": 2 * 5 * 7, "A": 8}, 1, torch.float32)
    expected = initial_routing(capsules, module.kernel, (5, 7))
    assert module(capsules, grid=(5, 7)).equal(expected)


@pytest.mark.parametrize(
    ("capsules", "actual"),
    [
        (torch.zeros(2, 33, 8), "[2, 33, 8]"),
        (torch.zeros(2, 32), "[2, 32]"),
        (torch.zeros(2, 32, 8, dtype=torch.int64), "int64"),
        (torch.full((1, 32, 1), float("nan")), "NaN in 32 of 32"),
    ],
    ids=["capsules", "dimensions", "whole numbers", "NaN"],
)
def test_capsules_that_do_not_fit_are_refused(capsules: torch.Tensor, actual: str) -> None:
    assert_refused(lambda: InitialRouting(grid=4, types=2)(capsules), "capsules", actual)


@pytest.mark.parametrize("capsules", [torch.zeros(2, 8), torch.zeros(2, 3, 8, 1)], ids=["2", "4"])
def test_statistic_of_wrong_number_of_dimensions_is_refused(capsules: torch.Tensor) -> None:
    assert_refused(lambda: capsule_statistic(capsules), "capsules", "[B, K, A]", str(list(capsules.shape)))


@pytest.mark.parametrize("eps", [0.0, -1e-3, float("nan")])
def test_eps_that_is_not_above_zero_is_refused(eps: float) -> None:
    assert_refused(lambda: capsule_statistic(torch.ones(1, 1, 2), eps), "eps", repr(eps))


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (3,), (1, 3, 3)], ids=str)
def test_kernel_that_is_not_square_and_odd_is_refused(shape: tuple[int, ...]) -> None:
    assert_refused(lambda: initial_routing(torch.ones(1, 4, 2), torch.ones(shape), (2, 2)), "kernel", str(list(shape)))


@pytest.mark.parametrize("grid", [(3, 2), (0, 2), (2, 0), (-2, 2), (-2, -2)], ids=str)
def test_grid_that_does_not_fit_is_refused(grid: object) -> None:
    assert_refused(lambda: initial_routing(torch.ones(1, 4, 2), torch.ones(3, 3), grid), "grid")


def test_bias_that_is_no_single_number_is_refused() -> None:
    bias = torch.ones(3)
    assert_refused(lambda: initial_routing(torch.ones(1, 3, 2), torch.ones(3, 3), (1, 3), bias), "bias", "[3]")


def test_operands_of_different_dtypes_are_refused() -> None:
    capsules, kernel = torch.ones(1, 4, 2, dtype=torch.float16), torch.ones(3, 3)
    assert_refused(lambda: initial_routing(capsules, kernel, (2, 2)), "dtype", "float16", "float32")


@pytest.mark.parametrize(("name", "value"), [("grid", 0), ("types", -1), ("kernel_size", 4), ("kernel_size", 0)])
def test_settings_that_do_not_fit_are_refused(name: str, value: int) -> None:
    settings = {"grid": 4, "types": 2, name: value}
    assert_refused(lambda: InitialRouting(**settings), name, str(value))

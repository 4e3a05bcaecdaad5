"""Correlation: the contract, the paper's recursion, its stability, and the module's uniform start."""

from operator import attrgetter

import pytest
import torch
from contract import STANDARD, VOTES, Variant, VoteContract, assert_close_to, assert_refused
from hypothesis import given
from hypothesis import strategies as st
from operands import Sizes, assert_equals_reference, by_reference, draw, seeds, sizes_up_to
from torch import Tensor

import reference
from contextcaps.capsules import CorrelationModule, LowLevelMap, correlate, correlation_weights, uniform_alpha


class TestCorrelateContract(VoteContract):
    @pytest.fixture(
        params=[
            Variant("alpha per image", correlate, {"alpha": "B J K-1"}, iterates=False),
            Variant("alpha for all images", correlate, {"alpha": "J K-1"}, iterates=False),
        ],
        ids=attrgetter("name"),
    )
    def variant(self, request: pytest.FixtureRequest) -> Variant:
        return request.param


@given(sizes=sizes_up_to(B=2, K=6, J=3, I=3), seed=seeds, shared=st.booleans(), zeros=st.booleans())
def test_correlate_equals_the_recursion(sizes: Sizes, seed: int, shared: bool, zeros: bool) -> None:
    votes, alpha = draw(VOTES, sizes, seed), draw("J K-1" if shared else "B J K-1", sizes, seed + 1)
    if zeros:
        alpha = alpha * (alpha > 0)
    repeated = alpha.expand(sizes["B"], -1, -1)
    assert_equals_reference(correlate(votes, alpha), by_reference(reference.correlation_recursion, votes, repeated))


@given(count=st.integers(1, 12), seed=seeds, exponent=st.integers(-6, 6))
def test_correlation_weights_equal_the_recursion(count: int, seed: int, exponent: int) -> None:
    alpha = draw("K-1", {"K": count}, seed) * 10.0**exponent
    assert_equals_reference(correlation_weights(alpha), by_reference(reference.correlation_weights, alpha))


@given(count=st.integers(1, 40), seed=seeds, exponent=st.integers(-6, 6))
def test_correlation_weights_have_unit_norm(count: int, seed: int, exponent: int) -> None:
    """Σ_k w_k² = 1 for any alpha, of any size."""
    weights = correlation_weights(draw("B J K-1", {"B": 2, "J": 3, "K": count}, seed) * 10.0**exponent)
    torch.testing.assert_close(weights.square().sum(dim=-1), torch.ones(2, 3, dtype=torch.float64))


@pytest.mark.parametrize("count", [1, 2, 12, 1152, 4096])
def test_correlation_weights_are_uniform_at_the_square_root(count: int) -> None:
    """α_k = √(k-1) gives 1/√K to every capsule."""
    weights = correlation_weights(uniform_alpha(count))
    torch.testing.assert_close(weights, torch.full((count,), count**-0.5), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("alpha", [[0.0], [0.0, 0.0, 0.0], [2.0, 0.0, -1.0], [0.0, -3.0], [0.5, -0.0]], ids=str)
def test_correlation_weights_are_exact_at_zero(alpha: list[float], dtype: torch.dtype) -> None:
    """α_k = 0 forgets all capsules before k, exactly to the working precision."""
    weights = correlation_weights(torch.tensor(alpha, dtype=dtype))
    expected = torch.tensor(by_reference(reference.correlation_weights, alpha))
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(weights.double(), expected, rtol=2 * eps, atol=min(eps, 1e-9))


@pytest.mark.parametrize(
    "alpha", [[0.0], [0.0, 0.0, 0.0], [2.0, 0.0, -1.0, 0.5], [1.0, -1.0], [0.0, 1e-3, -1e3, 0.0, 1.0]], ids=str
)
def test_correlation_weights_have_exact_gradients_at_zero_and_one(alpha: list[float]) -> None:
    """Neither α = 0, where a logarithm would break, nor |α| = 1, where two formulas meet, spoils the gradient."""
    assert torch.autograd.gradcheck(correlation_weights, torch.tensor(alpha, dtype=torch.float64, requires_grad=True))


def test_correlation_weights_at_zero_have_exact_gradients_in_float32() -> None:
    """The gradient at α = 0 is the same as in float64."""

    def gradient(dtype: torch.dtype) -> Tensor:
        alpha = torch.tensor([2.0, 0.0, -1.0, 0.0, 0.5], dtype=dtype, requires_grad=True)
        (correlation_weights(alpha) * draw("K", {"K": 6}, 1, dtype)).sum().backward()
        return alpha.grad.double()

    assert gradient(torch.float64).all()
    torch.testing.assert_close(gradient(torch.float32), gradient(torch.float64), rtol=1e-5, atol=1e-7)


MANY = 4096


def alphas(pattern: str) -> Tensor:
    """K - 1 = 4095 numbers of any sign and of sizes between 1e-6 and 1e6, in float32."""
    generator = torch.Generator().manual_seed(7)
    signs = torch.randint(0, 2, (MANY - 1,), generator=generator) * 2 - 1
    exponents = torch.rand(MANY - 1, generator=generator) * 12 - 6
    steps = torch.arange(MANY - 1)
    return {
        "least": torch.full((MANY - 1,), 1e-6),
        "least, any sign": 1e-6 * signs,
        "largest": torch.full((MANY - 1,), 1e6),
        "largest, any sign": 1e6 * signs,
        "one": torch.ones(MANY - 1),
        "minus one": -torch.ones(MANY - 1),
        "any size and sign": signs * 10.0**exponents,
        "growing": 10.0 ** (steps / (MANY - 2) * 12 - 6),
        "falling": 10.0 ** (6 - steps / (MANY - 2) * 12),
        "in turn": torch.where(steps % 2 == 0, 1e-6, 1e6),
        "square root, any sign": signs * uniform_alpha(MANY),
        "around the square root": uniform_alpha(MANY) * (1 + 0.3 * torch.randn(MANY - 1, generator=generator)),
        "largest and one least": torch.where(steps == 2000, 1e-6, 1e6),
        "largest and one zero": torch.where(steps == 2000, 0.0, 1e6),
    }[pattern].float()


PATTERNS = ["least", "least, any sign", "largest", "largest, any sign", "one", "minus one", "any size and sign"]
PATTERNS += ["growing", "falling", "in turn", "square root, any sign", "around the square root"]
PATTERNS += ["largest and one least", "largest and one zero"]


def weights_and_gradient(alpha: Tensor) -> tuple[Tensor, Tensor]:
    alpha = alpha.clone().requires_grad_()
    weights = correlation_weights(alpha)
    (weights * draw("K", {"K": MANY}, 3, alpha.dtype)).sum().backward()
    return weights.detach(), alpha.grad


@pytest.mark.parametrize("pattern", PATTERNS)
def test_correlation_weights_are_stable_at_4096_capsules(pattern: str) -> None:
    """In float32: unit norm to 1e-4, finite gradients, and the numbers of float64."""
    alpha = alphas(pattern)
    weights, gradient = weights_and_gradient(alpha)
    exact_weights, exact_gradient = weights_and_gradient(alpha.double())
    assert weights.dtype == torch.float32
    assert abs(weights.double().norm() - 1) < 1e-4
    assert gradient.isfinite().all()
    torch.testing.assert_close(weights.double(), exact_weights, rtol=1e-4, atol=1e-7)
    assert_close_to(gradient, exact_gradient, relative=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("pattern", ["one", "square root, any sign", "around the square root"])
def test_correlation_weights_are_computed_wide_in_half_precision(pattern: str, dtype: torch.dtype) -> None:
    """4,096 products lose nothing but the rounding of what comes in and goes out."""
    alpha = alphas(pattern).to(dtype)
    weights, gradient = weights_and_gradient(alpha)
    exact_weights, _ = weights_and_gradient(alpha.double())
    assert weights.dtype == dtype
    assert gradient.isfinite().all()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(weights.double(), exact_weights, rtol=eps, atol=1e-7)


def graph_size(output: Tensor) -> int:
    """How many operations autograd recorded for a tensor."""
    waiting, seen = [output.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(parent for parent, _ in node.next_functions)
    return len(seen)


def test_correlation_has_no_loop_over_capsules() -> None:
    """As many operations for 4,096 capsules as for 8."""

    def operations(count: int) -> int:
        sizes = {"B": 1, "K": count, "J": 2, "I": 2}
        return graph_size(correlate(draw(VOTES, sizes, 1), draw("B J K-1", sizes, 2).requires_grad_()))

    assert operations(4096) == operations(8) < 60


def test_alpha_for_all_images_equals_alpha_repeated() -> None:
    """[J, K-1] is one priority scheme for the whole batch."""
    votes, alpha = draw(VOTES, STANDARD, 1), draw("J K-1", STANDARD, 2)
    torch.testing.assert_close(correlate(votes, alpha), correlate(votes, alpha.repeat(STANDARD["B"], 1, 1)))


@pytest.mark.parametrize("shape", [(2, 4, 1), (4, 5), (2, 3, 0), (1, 4, 0), (3, 0), (4,)], ids=str)
def test_alpha_that_does_not_fit_a_single_capsule_is_refused(shape: tuple[int, ...]) -> None:
    """Also at K = 1, where the right alpha is empty."""
    votes = draw(VOTES, {"B": 2, "K": 1, "J": 4, "I": 3}, 1)
    alpha = torch.zeros(shape, dtype=torch.float64)
    assert_refused(lambda: correlate(votes, alpha), "alpha", str(list(shape)))


@pytest.mark.parametrize(
    ("alpha", "actual"),
    [
        (torch.tensor(1.0), "[]"),
        (torch.ones(3, dtype=torch.int64), "int64"),
        (torch.tensor([float("nan")]), "NaN in 1 of 1"),
        (1.0, "float"),
    ],
    ids=["no dimension", "whole numbers", "NaN", "number"],
)
def test_wrong_alpha_is_refused(alpha: object, actual: str) -> None:
    assert_refused(lambda: correlation_weights(alpha), "alpha", actual)


MODULES = {"full": None, "low rank": 3}


@pytest.mark.parametrize("rank", MODULES.values(), ids=MODULES)
def test_module_starts_at_uniform_weights(rank: int | None) -> None:
    """Each of the paper's 1,152 capsules has a weight within 1 % of 1/√K."""
    torch.manual_seed(0)
    module = CorrelationModule(grid=6, capsules=1152, classes=10, rank=rank)
    weights = module.weights(draw("B H W", {"B": 4, "H": 6, "W": 6}, 1, torch.float32))
    torch.testing.assert_close(weights, torch.full((4, 10, 1152), 1152**-0.5), rtol=0.01, atol=0)


@pytest.mark.parametrize("rank", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("start", ["uniform", "literal"])
def test_module_gives_gradient_to_every_parameter(start: str, rank: int | None) -> None:
    """At the start, all weights of all layers, and the map that alpha is read from."""
    torch.manual_seed(0)
    sizes = {"B": 3, "K": 8, "J": 5, "I": 4, "H": 2, "W": 2}
    module = CorrelationModule(2, 8, 5, rank=rank, start=start)
    feature_map = draw("B H W", sizes, 2, torch.float32).requires_grad_()
    sums = module(draw(VOTES, sizes, 1, torch.float32), feature_map).sums
    (sums * draw("B J I", sizes, 3, torch.float32)).sum().backward()
    gradients = [feature_map.grad, *(parameter.grad for parameter in module.parameters())]
    assert len(gradients) == (2 if rank is None else 3)
    assert all(gradient.all() for gradient in gradients)


@pytest.mark.parametrize("rank", MODULES.values(), ids=MODULES)
def test_module_is_the_function(rank: int | None) -> None:
    """The sums are `correlate` with the module's alpha, the weights those of that alpha."""
    sizes = {"B": 3, "K": 12, "J": 5, "I": 4, "H": 2, "W": 3}
    module = CorrelationModule((2, 3), 12, 5, rank=rank)
    votes, feature_map = draw(VOTES, sizes, 1, torch.float32), 500 * draw("B H W", sizes, 2, torch.float32)
    alpha = module.alpha(feature_map)
    assert alpha.shape == (3, 5, 11)
    result = module(votes, feature_map)
    torch.testing.assert_close(result.sums, correlate(votes, alpha))
    torch.testing.assert_close(result.weights, correlation_weights(alpha))
    assert result.weights.std() > 0.01, "the map has no effect"


def test_module_predicts_alpha_by_the_linear_layer_of_the_paper() -> None:
    """J(K-1) kernels of the map's own size: α = √(k-1) · (1 + kernel · map), or literally the product itself."""
    feature_map = draw("B H W", {"B": 2, "H": 3, "W": 3}, 1, torch.float32)
    for start in ("uniform", "literal"):
        module = CorrelationModule(3, 7, 4, start=start)
        kernels = module.weight.detach().permute(1, 2, 0).reshape(4 * 6, 1, 3, 3)
        predicted = torch.nn.functional.conv2d(feature_map[:, None], kernels).reshape(2, 4, 6)
        expected = predicted if start == "literal" else uniform_alpha(7) * (1 + predicted)
        torch.testing.assert_close(module.alpha(feature_map), expected, rtol=1e-5, atol=1e-6)


def test_literal_start_leaves_few_capsules_alive() -> None:
    """The other start: from random alphas of unit size, almost all weight lies on a handful of 1,152 capsules."""
    torch.manual_seed(0)
    module = CorrelationModule(6, 1152, 10, start="literal")
    weights = module.weights(draw("B H W", {"B": 4, "H": 6, "W": 6}, 1, torch.float32))
    effective = 1 / weights.pow(4).sum(dim=-1)  # [B, J], 1,152 for uniform weights
    assert effective.max() < 20


def test_number_of_weights_is_what_the_formula_says() -> None:
    """6.2 M at the paper's setting; N² → r → J(K-1) of low rank."""
    full = CorrelationModule(6, 1152, 150)
    low = CorrelationModule(6, 1152, 150, rank=2)
    assert sum(weight.numel() for weight in full.parameters()) == 36 * 150 * 1151
    assert sum(weight.numel() for weight in low.parameters()) == 36 * 2 + 2 * 150 * 1151


def test_module_works_with_a_single_capsule() -> None:
    """There is no alpha to predict; the capsule has all weight."""
    votes = draw(VOTES, {"B": 2, "K": 1, "J": 3, "I": 4}, 1, torch.float32)
    result = CorrelationModule(1, 1, 3)(votes, torch.ones(2, 1, 1))
    torch.testing.assert_close(result.sums, votes[:, 0])


def test_low_level_map_is_a_pointwise_convolution_of_the_primary_maps() -> None:
    """One number for each cell, from all types and attributes there."""
    sizes = {"B": 2, "D": 3, "H": 2, "W": 4, "A": 5}
    module = LowLevelMap(3, 5, (2, 4))
    module.bias.data.fill_(0.25)
    by_type = draw("B D H W A", sizes, 1, torch.float32)
    maps = by_type.permute(0, 1, 4, 2, 3).reshape(2, 15, 2, 4)  # [B, D·A, H, W]
    expected = torch.nn.functional.conv2d(maps, module.weight.reshape(1, 15, 1, 1), module.bias)[:, 0]
    torch.testing.assert_close(module(by_type.reshape(2, 24, 5)), expected)


@pytest.mark.parametrize(
    ("votes", "feature_map", "actual"),
    [
        ((2, 7, 4, 3), (2, 2, 2), "[2, 7, 4, 3]"),
        ((2, 6, 5, 3), (2, 2, 2), "[2, 6, 5, 3]"),
        ((2, 6, 4, 3), (2, 3, 2), "[2, 3, 2]"),
        ((2, 6, 4, 3), (2, 1, 2, 2), "[2, 1, 2, 2]"),
        ((2, 6, 4, 3), (3, 2, 2), "[3, 2, 2]"),
        ((2, 6, 4, 3), (1, 2, 2), "[1, 2, 2]"),
    ],
    ids=["capsules", "classes", "grid", "dimensions", "larger batch", "batch of one"],
)
def test_module_refuses_what_does_not_fit(votes: tuple[int, ...], feature_map: tuple[int, ...], actual: str) -> None:
    module = CorrelationModule(2, 6, 4)
    wrong = "votes" if actual == str(list(votes)) else "feature_map"
    assert_refused(lambda: module(torch.zeros(votes), torch.zeros(feature_map)), wrong, actual)


def test_feature_map_of_another_dtype_is_refused() -> None:
    """float64 for float32 weights, without autocast."""
    module = CorrelationModule(2, 6, 4)
    assert_refused(lambda: module.alpha(torch.zeros(2, 2, 2).double()), "feature_map", "float32", "float64")


@pytest.mark.parametrize(
    ("capsules", "actual"),
    [
        (torch.zeros(2, 25, 5), "[2, 25, 5]"),
        (torch.zeros(2, 24, 6), "[2, 24, 6]"),
        (torch.zeros(2, 24, 5).double(), "float64"),
    ],
    ids=["capsules", "attributes", "dtype"],
)
def test_low_level_map_refuses_what_does_not_fit(capsules: Tensor, actual: str) -> None:
    assert_refused(lambda: LowLevelMap(3, 5, (2, 4))(capsules), "capsules", actual)


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"grid": 0}, "grid"), ({"capsules": -1}, "capsules"), ({"rank": 0}, "rank"), ({"start": "ones"}, "start")],
)
def test_unknown_settings_are_refused(settings: dict[str, object], name: str) -> None:
    given_settings = {"grid": 2, "capsules": 6, "classes": 4, **settings}
    assert_refused(lambda: CorrelationModule(**given_settings), name, repr(settings[name]))

"""Dynamic routing: the contract, the reference, and what the initial routing weights do in each reading."""

from functools import partial
from itertools import product
from operator import attrgetter

import pytest
import torch
from contract import STANDARD, Variant, VoteContract, assert_close_to, assert_refused
from hypothesis import given
from hypothesis import strategies as st
from operands import Sizes, assert_equals_reference, by_reference, draw, seeds, sizes_up_to
from torch import Tensor

import reference
from contextcaps.capsules import DynamicRouting, InitialRouting, dynamic_routing, squash

READINGS = ["couplings", "gate", "logits"]
NORMALIZATIONS = ["classes", "capsules"]
# The readings in which the initial routing weights act; logits over classes is the one that does not.
WORKING = [("couplings", "classes"), ("couplings", "capsules"), ("gate", "classes"), ("gate", "capsules")]
WORKING += [("logits", "capsules")]


def decisions_of(votes: Tensor, **settings: object) -> Tensor:
    return dynamic_routing(votes, **settings).decisions


def routing_variants() -> list[Variant]:
    initials = [(None, "couplings"), *product(["B K", "B K J"], READINGS)]
    variants = []
    for (legend, reading), normalize, iterations, biased in product(initials, NORMALIZATIONS, [1, 3], [False, True]):
        operands = {} if legend is None else {"initial": legend}
        operands |= {"bias": "J I"} if biased else {}
        start = "none" if legend is None else f"{reading}[{legend.replace(' ', '')}]"
        name = f"{start}-{normalize}-{iterations}" + ("-bias" if biased else "")
        run = partial(decisions_of, iterations=iterations, initial_as=reading, normalize=normalize)
        no_op = (legend, reading, normalize) == ("B K", "logits", "classes")
        variants.append(Variant(name, run, operands, without_effect=("initial",) if no_op else ()))
    return variants


class TestDynamicRoutingContract(VoteContract):
    @pytest.fixture(params=routing_variants(), ids=attrgetter("name"))
    def variant(self, request: pytest.FixtureRequest) -> Variant:
        return request.param


class RoutedCapsules:
    """A small network's worth of capsules, their votes, and an initial-routing module to learn from them."""

    def __init__(self, dtype: torch.dtype) -> None:
        sizes = {"B": 3, "K": 2 * 4 * 4, "A": 8, "J": 10, "I": 16}
        torch.manual_seed(0)
        self.module = InitialRouting(grid=4, types=2).to(dtype)
        self.capsules = draw("B K A", sizes, 1, dtype)
        self.votes = draw("B K J I", sizes, 2, dtype)
        self.weighting = draw("B J I", sizes, 3, dtype)

    def decisions(self, initial_as: str, normalize: str) -> Tensor:
        return dynamic_routing(self.votes, 3, self.module(self.capsules), initial_as, normalize).decisions

    def kernel_gradient(self, initial_as: str, normalize: str) -> Tensor:
        self.module.zero_grad()
        (self.decisions(initial_as, normalize) * self.weighting).sum().backward()
        return self.module.kernel.grad.clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_initial_weights_as_logits_over_classes_change_nothing(dtype: torch.dtype) -> None:
    """A constant over classes cancels in the softmax over classes, at every iteration."""
    routed = RoutedCapsules(dtype)
    without = dynamic_routing(routed.votes, 3).decisions
    assert_close_to(routed.decisions("logits", "classes"), without, relative=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_initial_weights_as_logits_over_classes_get_no_gradient(dtype: torch.dtype) -> None:
    """The kernel cannot learn in this reading: its gradient is rounding noise."""
    routed = RoutedCapsules(dtype)
    noise = routed.kernel_gradient("logits", "classes").norm()
    assert noise < 1e-6 * routed.kernel_gradient("gate", "classes").norm()


@pytest.mark.parametrize(("initial_as", "normalize"), WORKING)
def test_initial_weights_get_gradient_in_every_working_reading(initial_as: str, normalize: str) -> None:
    """Every weight of the kernel gets a gradient, of a size comparable to that of the gate."""
    routed = RoutedCapsules(torch.float32)
    gradient = routed.kernel_gradient(initial_as, normalize)
    assert gradient.all()
    assert gradient.norm() > 1e-2 * routed.kernel_gradient("gate", "classes").norm()


@pytest.mark.parametrize(("initial_as", "normalize"), WORKING)
def test_initial_weights_change_the_decisions_in_every_working_reading(initial_as: str, normalize: str) -> None:
    """The same weights that are nothing as logits over classes move the decisions by more than a tenth here."""
    routed = RoutedCapsules(torch.float32)
    without = dynamic_routing(routed.votes, 3, normalize=normalize).decisions
    change = (routed.decisions(initial_as, normalize) - without).norm() / without.norm()
    assert change > 0.1


def test_initial_logits_that_differ_between_classes_act_over_classes() -> None:
    """Only weights repeated over classes are the no-op; a [B, K, J] tensor is not."""
    votes = draw("B K J I", STANDARD, 1)
    with_logits = dynamic_routing(votes, 3, draw("B K J", STANDARD, 2), "logits", "classes").decisions
    without = dynamic_routing(votes, 3).decisions
    assert (with_logits - without).norm() > 0.1 * without.norm()


@given(
    sizes=sizes_up_to(B=2, K=4, J=4, I=3),
    seed=seeds,
    iterations=st.integers(1, 4),
    biased=st.booleans(),
    gain=st.sampled_from([1.0, 0.5, 7.0]),
    legend=st.sampled_from([None, "B K", "B K J"]),
)
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("initial_as", READINGS)
def test_routing_equals_reference(
    sizes: Sizes,
    seed: int,
    iterations: int,
    biased: bool,
    gain: float,
    legend: str | None,
    initial_as: str,
    normalize: str,
) -> None:
    votes = draw("B K J I", sizes, seed)
    initial = None if legend is None else draw(legend, sizes, seed + 1)
    bias = draw("J I", sizes, seed + 2) if biased else None
    result = dynamic_routing(votes, iterations, initial, initial_as, normalize, bias, gain)
    decisions, couplings, logits = by_reference(
        reference.dynamic_routing, votes, iterations, initial, initial_as, normalize, bias, gain
    )
    assert_equals_reference(result.decisions, decisions)
    assert_equals_reference(result.couplings, couplings)
    assert_equals_reference(result.logits, logits)
    torch.testing.assert_close(squash(result.sums), result.decisions)


@pytest.mark.parametrize(("normalize", "dim"), [("classes", 2), ("capsules", 1)])
def test_couplings_sum_to_one_over_what_they_are_normalised_over(normalize: str, dim: int) -> None:
    """Sabour's softmax runs over classes, the other one over capsules."""
    couplings = dynamic_routing(draw("B K J I", STANDARD, 1), normalize=normalize).couplings
    torch.testing.assert_close(couplings.sum(dim=dim), torch.ones_like(couplings.sum(dim=dim)))
    other = couplings.sum(dim=3 - dim)
    assert not torch.allclose(other, torch.ones_like(other))


def test_one_iteration_is_the_squashed_sum_over_the_number_of_classes() -> None:
    """All logits are zero, all couplings 1/J."""
    votes = draw("B K J I", STANDARD, 1)
    result = dynamic_routing(votes, iterations=1)
    torch.testing.assert_close(result.decisions, squash(votes.sum(dim=1) / STANDARD["J"]))
    assert not result.logits.any()


def test_agreeing_votes_win_couplings() -> None:
    """Two capsules that agree on class 0 and contradict each other on class 1 turn to class 0."""
    votes = torch.tensor([[[[2.0, 0.0], [2.0, 0.0]], [[2.0, 0.0], [-2.0, 0.0]]]])  # [1, 2, 2, 2]
    couplings = dynamic_routing(votes).couplings  # [1, 2, 2]
    assert (couplings[..., 0] > 0.8).all()


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("initial_as", READINGS)
def test_weights_for_all_classes_equal_weights_repeated(initial_as: str, normalize: str) -> None:
    """[B, K] means the same weight for every class."""
    votes, initial = draw("B K J I", STANDARD, 1), draw("B K", STANDARD, 2)
    repeated = initial.unsqueeze(2).repeat(1, 1, STANDARD["J"])
    short = dynamic_routing(votes, 3, initial, initial_as, normalize)
    long = dynamic_routing(votes, 3, repeated, initial_as, normalize)
    for name in short._fields:
        torch.testing.assert_close(getattr(short, name), getattr(long, name), msg=name)


def test_first_couplings_are_the_initial_weights_themselves() -> None:
    """ "couplings" takes the weights as they are in the first iteration, without a softmax."""
    votes, initial = draw("B K J I", STANDARD, 1), draw("B K J", STANDARD, 2)
    assert dynamic_routing(votes, 1, initial, "couplings").couplings.equal(initial)


@pytest.mark.parametrize("initial_as", ["couplings", "gate"])
def test_later_couplings_are_multiplied_only_as_couplings(initial_as: str) -> None:
    """Weights that multiply couplings show in the couplings; a gate shows in the votes alone."""
    votes = draw("B K J I", STANDARD, 1)
    twice = torch.full((STANDARD["B"], STANDARD["K"]), 2.0, dtype=votes.dtype)
    total = dynamic_routing(votes, 3, twice, initial_as).couplings.sum(dim=2)
    torch.testing.assert_close(total, twice if initial_as == "couplings" else twice / 2)


@pytest.mark.parametrize("biased", [False, True])
def test_module_is_the_function(biased: bool) -> None:
    """DynamicRouting holds the settings and a bias that starts at zero."""
    votes, initial = draw("B K J I", STANDARD, 1, torch.float32), draw("B K", STANDARD, 2, torch.float32)
    shape = (STANDARD["J"], STANDARD["I"]) if biased else None
    module = DynamicRouting(iterations=2, initial_as="gate", normalize="capsules", bias_shape=shape)
    expected = dynamic_routing(votes, 2, initial, "gate", "capsules").decisions
    torch.testing.assert_close(module(votes, initial).decisions, expected)
    if biased:
        module.bias.data.fill_(0.5)
        moved = dynamic_routing(votes, 2, initial, "gate", "capsules", torch.full(shape, 0.5)).decisions
        torch.testing.assert_close(module(votes, initial).decisions, moved)


def test_bias_gives_dead_capsules_a_gradient() -> None:
    """With votes of zero the squash is flat; a bias off zero keeps the decision alive."""
    bias = torch.full((4, 3), 0.1, requires_grad=True)
    dynamic_routing(torch.zeros(2, 6, 4, 3), bias=bias).decisions.sum().backward()
    assert (bias.grad > 0.05).all()


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"iterations": 0}, "iterations"), ({"initial_as": "weights"}, "initial_as"), ({"normalize": "J"}, "normalize")],
)
def test_unknown_settings_are_refused(settings: dict[str, object], name: str) -> None:
    votes = draw("B K J I", STANDARD, 1)
    assert_refused(lambda: dynamic_routing(votes, **settings), name, repr(settings[name]))

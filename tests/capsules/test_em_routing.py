"""EM routing: the contract, the reference, and lengths that are activations."""

from functools import partial
from operator import attrgetter

import pytest
import torch
from contract import STANDARD, Variant, VoteContract, assert_refused
from hypothesis import given
from hypothesis import strategies as st
from operands import Sizes, assert_equals_reference, by_reference, draw, draw_probabilities, seeds, sizes_up_to
from torch import Tensor

import reference
from contextcaps.capsules import EMRouting, EMRoutingResult, em_routing, lengths
from contextcaps.capsules.em_routing import inverse_temperatures

OPERANDS = {"activations": "B K", "beta_use": "J", "beta_activate": "J"}


def part_of(part: str, votes: Tensor, iterations: int, temperature: float | None = None, **operands: Tensor) -> Tensor:
    """One field of the result; `temperature` is the same inverse temperature for all iterations."""
    schedule = None if temperature is None or not isinstance(iterations, int) else [temperature] * iterations
    return getattr(em_routing(votes, iterations=iterations, inverse_temperature=schedule, **operands), part)


def em_variants() -> list[Variant]:
    return [
        Variant(
            f"{part}-{iterations}-{'default' if temperature is None else temperature}",
            partial(part_of, part, iterations=iterations, temperature=temperature),
            OPERANDS,
            probabilities=("activations",),
            output=output,
        )
        for part, output in [("decisions", "B J I"), ("activations", "B J")]
        for iterations in (1, 3)
        for temperature in (None, 0.5)
    ]


class TestEMRoutingContract(VoteContract):
    @pytest.fixture(params=em_variants(), ids=attrgetter("name"))
    def variant(self, request: pytest.FixtureRequest) -> Variant:
        return request.param


def route(sizes: Sizes, seed: int, dtype: torch.dtype = torch.float64, **settings: object) -> EMRoutingResult:
    return em_routing(
        draw("B K J I", sizes, seed, dtype),
        draw_probabilities("B K", sizes, seed + 1, dtype),
        draw("J", sizes, seed + 2, dtype),
        draw("J", sizes, seed + 3, dtype),
        **settings,
    )


@given(
    sizes=sizes_up_to(B=2, K=4, J=4, I=3),
    seed=seeds,
    schedule=st.none() | st.lists(st.floats(1e-3, 2.0), min_size=1, max_size=4),
)
def test_em_routing_equals_reference(sizes: Sizes, seed: int, schedule: list[float] | None) -> None:
    iterations = 3 if schedule is None else len(schedule)
    result = route(sizes, seed, iterations=iterations, inverse_temperature=schedule)
    means, activations, assignments = by_reference(
        reference.em_routing,
        draw("B K J I", sizes, seed),
        draw_probabilities("B K", sizes, seed + 1),
        draw("J", sizes, seed + 2),
        draw("J", sizes, seed + 3),
        iterations,
        inverse_temperatures(3) if schedule is None else schedule,
    )
    assert_equals_reference(result.means, means)
    assert_equals_reference(result.activations, activations)
    assert_equals_reference(result.couplings, assignments)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_lengths_of_decisions_are_the_activations(dtype: torch.dtype) -> None:
    """So a class's score is read off its decision capsule as with any other routing."""
    result = route(STANDARD, 5, dtype, inverse_temperature=[0.5, 0.7, 0.9])
    torch.testing.assert_close(lengths(result.decisions), result.activations)
    rounded = {"rtol": 1e-2, "atol": 0} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(result.logits.sigmoid(), result.activations, **rounded)
    directions = torch.nn.functional.cosine_similarity(result.decisions.double(), result.means.double(), dim=-1)
    assert (directions > 0.999).all()


def test_tight_clusters_are_more_active_than_loose_ones() -> None:
    """Ten capsules agree on class 0 and disagree on class 1."""
    votes = draw("B K J I", {"B": 1, "K": 10, "J": 2, "I": 4}, 1)
    votes[:, :, 0] = votes[:, :1, 0] + 0.01 * votes[:, :, 0]
    zero = torch.zeros(2, dtype=votes.dtype)
    active = em_routing(votes, torch.ones(1, 10, dtype=votes.dtype), zero, zero, 3, [0.1] * 3).activations[0]
    assert active[0] > active[1] + 0.2


def test_inactive_capsules_do_not_count() -> None:
    """A capsule of activation zero may vote as it likes."""
    votes, activations = draw("B K J I", STANDARD, 1), torch.ones(STANDARD["B"], STANDARD["K"], dtype=torch.float64)
    activations[:, 0] = 0
    other = votes.clone()
    other[:, 0] += 3
    beta = torch.zeros(STANDARD["J"], dtype=torch.float64)
    first, second = (em_routing(chosen, activations, beta, beta) for chosen in (votes, other))
    torch.testing.assert_close(first.decisions, second.decisions)


def test_module_is_the_function() -> None:
    """EMRouting starts its costs at zero and gets a gradient for both."""
    votes = draw("B K J I", STANDARD, 1, torch.float32)
    activations = draw_probabilities("B K", STANDARD, 2, torch.float32)
    module = EMRouting(STANDARD["J"], iterations=2, final_inverse_temperature=0.5)
    result = module(votes, activations)
    zero = torch.zeros(STANDARD["J"])
    expected = em_routing(votes, activations, zero, zero, 2, inverse_temperatures(2, final=0.5))
    torch.testing.assert_close(result.decisions, expected.decisions)
    (result.decisions * draw("B J I", STANDARD, 3, torch.float32)).sum().backward()
    assert all(parameter.grad.all() for parameter in module.parameters())


@given(sizes=sizes_up_to(B=3, K=8, J=6, I=4), seed=seeds, target=st.floats(0.02, 0.9))
def test_starts_where_it_is_told(sizes: Sizes, seed: int, target: float) -> None:
    """The mean activation of the votes it is shown, by costs that are alike for all classes; and finite in any case."""
    votes, activations = draw("B K J I", sizes, seed), draw_probabilities("B K", sizes, seed + 1)
    module = EMRouting(sizes["J"], final_inverse_temperature=0.01).double()
    module.start_at(target, votes, activations)
    assert float(module(votes, activations).activations.mean()) == pytest.approx(target, rel=0.011)
    assert bool((module.beta_activate == module.beta_activate[0]).all())
    assert not module.beta_use.any()

    sharp = EMRouting(sizes["J"], final_inverse_temperature=100.0).double()
    sharp.start_at(target, votes, activations)
    assert sharp.beta_activate.isfinite().all()


def test_operands_of_different_dtypes_are_refused() -> None:
    """Unlike half precision under autocast, float32 votes and float64 activations are a mistake."""
    votes, beta = draw("B K J I", STANDARD, 1, torch.float32), torch.zeros(STANDARD["J"])
    activations = draw_probabilities("B K", STANDARD, 2)
    assert_refused(lambda: em_routing(votes, activations, beta, beta), "activations", "float32", "float64")


def test_schedule_of_another_length_is_refused() -> None:
    assert_refused(
        lambda: route(STANDARD, 1, iterations=3, inverse_temperature=[0.1]), "inverse_temperature", "3", "got 1"
    )

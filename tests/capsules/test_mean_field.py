"""Mean-field CRF: the contract, the reference, what Algorithm 1 to the letter does and what the module does."""

from functools import partial
from itertools import product
from operator import attrgetter

import pytest
import torch
from contract import STANDARD, VOTES, Variant, VoteContract, assert_refused
from hypothesis import given
from hypothesis import strategies as st
from operands import Sizes, assert_equals_reference, by_reference, draw, seeds, sizes_up_to
from torch import Tensor

import reference
from contextcaps.capsules import MeanFieldCRF, mean_field

PAIRWISE = {
    "full": {"pairwise": "J J"},
    "per attribute": {"pairwise": "I J J"},
    "low rank": {"left": "J r", "right": "J r"},
}
UNARIES = ["original", "current"]
RETURNS = ["logits", "marginals"]
PAPER_CLASSES = 150


def low_rank_mean_field(votes: Tensor, left: Tensor, right: Tensor, **settings: object) -> Tensor:
    return mean_field(votes, (left, right), **settings)


def mean_field_variants() -> list[Variant]:
    messages = {"plain": {}, "centred": {"centre": True, "scale": 1.5}}
    return [
        Variant(
            f"{unary}-{returns}-{form}-{message}",
            partial(
                low_rank_mean_field if form == "low rank" else mean_field, unary=unary, returns=returns, **settings
            ),
            operands,
            output=VOTES,
            called={"left": "pairwise", "right": "pairwise"},
        )
        for unary, returns, (form, operands), (message, settings) in product(
            UNARIES, RETURNS, PAIRWISE.items(), messages.items()
        )
    ]


class TestMeanFieldContract(VoteContract):
    @pytest.fixture(params=mean_field_variants(), ids=attrgetter("name"))
    def variant(self, request: pytest.FixtureRequest) -> Variant:
        return request.param


@given(
    sizes=sizes_up_to(B=2, K=3, J=4, I=3, r=3),
    seed=seeds,
    iterations=st.integers(0, 3),
    centre=st.booleans(),
    scale=st.floats(0.1, 5.0),
)
@pytest.mark.parametrize("form", PAIRWISE)
@pytest.mark.parametrize("returns", RETURNS)
@pytest.mark.parametrize("unary", UNARIES)
def test_mean_field_equals_reference(
    sizes: Sizes, seed: int, iterations: int, centre: bool, scale: float, form: str, returns: str, unary: str
) -> None:
    votes = draw(VOTES, sizes, seed)
    drawn = [draw(legend, sizes, seed + 1 + n) for n, legend in enumerate(PAIRWISE[form].values())]
    pairwise = tuple(drawn) if form == "low rank" else drawn[0]
    matrix = drawn[0] @ drawn[1].T if form == "low rank" else drawn[0]
    fast = mean_field(votes, pairwise, iterations, unary, returns, centre, scale)
    assert_equals_reference(
        fast, by_reference(reference.mean_field, votes, matrix, iterations, unary, returns, centre, scale)
    )


def test_message_goes_from_the_first_index_to_the_second() -> None:
    """pairwise[j', j] weighs what class j' tells class j, not the other way round."""
    votes = torch.zeros(1, 1, 2, 1)
    pairwise = torch.tensor([[0.0, 6.0], [0.0, 0.0]])  # class 0 speaks to class 1
    logits = mean_field(votes, pairwise, iterations=1)
    torch.testing.assert_close(logits.flatten(), torch.tensor([0.0, -3.0]))


@pytest.mark.parametrize("shape", ["J J", "I J J"])
@pytest.mark.parametrize("unary", UNARIES)
def test_diagonal_never_counts(shape: str, unary: str) -> None:
    """Another diagonal gives the same output, and the diagonal's gradient is exactly zero."""
    votes, pairwise = draw(VOTES, STANDARD, 1), draw(shape, STANDARD, 2)
    diagonal = torch.eye(STANDARD["J"], dtype=torch.float64)
    pairwise.requires_grad_()
    output = mean_field(votes, pairwise, unary=unary)
    torch.testing.assert_close(output, mean_field(votes, pairwise + 7 * diagonal, unary=unary))
    (output * draw(VOTES, STANDARD, 3)).sum().backward()
    assert not (pairwise.grad * diagonal).any()
    assert (pairwise.grad + diagonal).all()


@pytest.mark.parametrize("rank", [1, 3, 10])
def test_low_rank_equals_the_product_matrix(rank: int) -> None:
    """Two factors [J, r] are the matrix left · rightᵀ, without its diagonal, in value and in gradient."""
    sizes = {**STANDARD, "r": rank}
    votes, weighting = draw(VOTES, sizes, 1), draw(VOTES, sizes, 4)
    left, right = draw("J r", sizes, 2).requires_grad_(), draw("J r", sizes, 3).requires_grad_()
    by_factors, by_matrix = mean_field(votes, (left, right)), mean_field(votes, left @ right.T)
    torch.testing.assert_close(by_factors, by_matrix)
    found = torch.autograd.grad((by_factors * weighting).sum(), [left, right])
    torch.testing.assert_close(found, torch.autograd.grad((by_matrix * weighting).sum(), [left, right]))


def test_factors_may_come_in_a_list() -> None:
    """A pair is a pair: [left, right] means what (left, right) means."""
    votes, left, right = (draw(legend, STANDARD, n) for n, legend in enumerate([VOTES, "J r", "J r"]))
    torch.testing.assert_close(mean_field(votes, [left, right]), mean_field(votes, (left, right)))


def test_capsules_and_attributes_do_not_hear_each_other() -> None:
    """Each (k, i) is a CRF of its own: what one capsule or attribute votes reaches no other."""
    votes = draw(VOTES, STANDARD, 1).requires_grad_()
    output = mean_field(votes, draw("J J", STANDARD, 2), centre=True, scale=4.0)
    output[0, 2, :, 1].sum().backward()
    reached = votes.grad.abs().sum(dim=2) > 0  # [B, K, I]
    assert reached.nonzero().tolist() == [[0, 2, 1]]


def test_no_iterations_give_the_votes_or_their_softmax() -> None:
    """Nothing is said, nothing changes."""
    votes, pairwise = draw(VOTES, STANDARD, 1), draw("J J", STANDARD, 2)
    assert mean_field(votes, pairwise, iterations=0).equal(votes)
    torch.testing.assert_close(mean_field(votes, pairwise, 0, returns="marginals"), votes.softmax(dim=2))


@pytest.mark.parametrize("unary", UNARIES)
def test_marginals_are_distributions_over_classes(unary: str) -> None:
    """Positive, and their sum over J is 1."""
    marginals = mean_field(draw(VOTES, STANDARD, 1), draw("J J", STANDARD, 2), unary=unary, returns="marginals")
    assert (marginals > 0).all()
    torch.testing.assert_close(marginals.sum(dim=2), torch.ones_like(marginals.sum(dim=2)))


def literal_marginals(iterations: int, pairwise: Tensor) -> Tensor:
    """Algorithm 1 to the letter at the paper's J. [B, K, J, I]"""
    votes = draw(VOTES, {"B": 2, "K": 20, "J": PAPER_CLASSES, "I": 4}, 1)
    return mean_field(votes, pairwise, iterations, unary="current", returns="marginals")


@pytest.mark.parametrize("iterations", [0, 1, 2, 3])
def test_literal_crf_without_context_shrinks_its_signal_by_the_number_of_classes(iterations: int) -> None:
    """With a pairwise of zero, each further iteration divides the deviation from uniform by about J = 150."""
    nothing = torch.zeros(PAPER_CLASSES, PAPER_CLASSES, dtype=torch.float64)
    before, after = ((literal_marginals(n, nothing) - 1 / PAPER_CLASSES).norm() for n in (iterations, iterations + 1))
    factor = before / after
    assert 100 < factor < 200, factor


@pytest.mark.parametrize("iterations", [0, 1, 2, 3])
def test_literal_crf_forgets_its_capsules(iterations: int) -> None:
    """From its random start, what tells one capsule's marginals from another's falls 50-fold in each iteration."""
    torch.manual_seed(0)
    pairwise = MeanFieldCRF(PAPER_CLASSES, literal=True).pairwise.detach().double()
    before, after = (literal_marginals(n, pairwise).std(dim=1).norm() for n in (iterations, iterations + 1))
    factor = before / after
    assert factor > 50, factor


def test_original_unary_keeps_the_signal_where_the_literal_crf_loses_it() -> None:
    """Re-adding the votes leaves the capsules as different after three iterations as they were."""
    torch.manual_seed(0)
    pairwise = MeanFieldCRF(PAPER_CLASSES, literal=True).pairwise.detach().double()
    votes = draw(VOTES, {"B": 2, "K": 20, "J": PAPER_CLASSES, "I": 4}, 1)
    logits = mean_field(votes, pairwise, 3)
    assert logits.std(dim=1).norm() > 0.9 * votes.std(dim=1).norm()
    assert literal_marginals(3, pairwise).std(dim=1).norm() < 1e-6 * votes.std(dim=1).norm()


FORMS = {
    "full": {},
    "per attribute": {"attributes": 3},
    "per capsule and attribute": {"attributes": 3, "capsules": 6},
    "low rank": {"rank": 2},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("classes", [1, 4, PAPER_CLASSES])
def test_module_starts_as_the_identity(form: dict[str, int], classes: int) -> None:
    """At the start the votes pass unchanged."""
    votes = draw(VOTES, {**STANDARD, "J": classes}, 1, torch.float32)
    torch.testing.assert_close(MeanFieldCRF(classes, **form)(votes), votes, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("form", "learning"),
    [({}, ["weight"]), ({"attributes": 3}, ["weight"]), ({"rank": 2}, ["right"])],
    ids=["full", "per attribute", "low rank"],
)
@pytest.mark.parametrize("classes", [4, PAPER_CLASSES])
def test_module_gets_gradient_at_the_start(form: dict[str, int], learning: list[str], classes: int) -> None:
    """Every potential off the diagonal has a gradient; of two factors, the one that starts at zero."""
    sizes = {**STANDARD, "J": classes}
    module = MeanFieldCRF(classes, **form)
    output = module(draw(VOTES, sizes, 1, torch.float32))
    (output * draw(VOTES, sizes, 2, torch.float32)).sum().backward()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad.any()}
    assert list(gradients) == learning
    for gradient in gradients.values():
        if "rank" not in form:
            gradient = gradient + torch.eye(classes)
        assert gradient.all()
        assert gradient.norm() > 1e-2


@pytest.mark.parametrize("classes", [4, PAPER_CLASSES, 1000])
def test_messages_are_of_the_size_of_the_votes_whatever_the_number_of_classes(classes: int) -> None:
    """With random potentials of a linear layer's size, messages neither vanish nor drown the votes."""
    sizes = {"B": 1, "K": 8, "J": classes, "I": 3}
    votes, module = draw(VOTES, sizes, 1, torch.float32), MeanFieldCRF(classes, iterations=1)
    module.weight.data = draw("J J", sizes, 2, torch.float32) * classes**-0.5
    message = votes - module(votes)
    assert 0.3 < message.norm() / votes.norm() < 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_keeps_faint_messages_of_many_classes(dtype: torch.dtype) -> None:
    """The signal is H's small difference from 1/J, which H rounded to half precision would not hold any more."""
    sizes = {"B": 1, "K": 4, "J": 1000, "I": 2}
    votes, pairwise = 0.02 * draw(VOTES, sizes, 1, dtype), draw("J J", sizes, 2, dtype) * 1000**-0.5

    def message(chosen: torch.dtype) -> Tensor:
        output = mean_field(votes.to(chosen), pairwise.to(chosen), 1, centre=True, scale=1000.0)
        return votes.double() - output.double()

    exact = message(torch.float64)
    assert (message(dtype) - exact).norm() < 2 * torch.finfo(dtype).eps * exact.norm()


def test_module_centres_its_messages() -> None:
    """Votes that favour no class send no message, so that no offset reaches all capsules alike."""
    module = MeanFieldCRF(5)
    module.weight.data.normal_(generator=torch.Generator().manual_seed(1))
    equal = torch.full((2, 6, 5, 3), 0.7)
    torch.testing.assert_close(module(equal), equal, rtol=0, atol=1e-5)
    assert not torch.allclose(mean_field(equal, module.weight), equal, atol=0.1)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("literal", [False, True])
def test_module_is_the_function(form: dict[str, int], literal: bool) -> None:
    """The module is centred and scaled by J; its literal mode is Algorithm 1."""
    votes, module = draw(VOTES, STANDARD, 1, torch.float32), MeanFieldCRF(4, iterations=3, literal=literal, **form)
    for parameter in module.parameters():
        parameter.data.normal_(generator=torch.Generator().manual_seed(2))
    settings = {"unary": "current", "returns": "marginals"} if literal else {"centre": True, "scale": 4.0}
    torch.testing.assert_close(module(votes), mean_field(votes, module.pairwise, 3, **settings))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_literal_module_has_potentials_at_the_start(form: dict[str, int]) -> None:
    """A random layer, every weight of which gets a gradient off the diagonal."""
    module = MeanFieldCRF(4, literal=True, **form)
    output = module(draw(VOTES, STANDARD, 1, torch.float32))
    (output * draw(VOTES, STANDARD, 2, torch.float32)).sum().backward()
    for parameter in module.parameters():
        assert parameter.all()
        assert parameter.grad.abs().max() > 1e-5


def test_number_of_potentials_is_what_the_formula_says() -> None:
    """22,500 weights shared, 360,000 per attribute, 2·J·r of low rank at the paper's J = 150 and I = 16."""
    forms = [{}, {"attributes": 16}, {"rank": 8}, {"attributes": 2, "capsules": 3}]
    counts = [sum(weight.numel() for weight in MeanFieldCRF(PAPER_CLASSES, **form).parameters()) for form in forms]
    assert counts == [22_500, 360_000, 2_400, 3 * 2 * 22_500]


def test_one_matrix_per_capsule_and_attribute_is_that_capsule_s_own_crf() -> None:
    votes, pairwise = draw(VOTES, STANDARD, 1), draw("K I J J", STANDARD, 2)
    found = mean_field(votes, pairwise)
    for k in range(votes.shape[1]):
        torch.testing.assert_close(found[:, k : k + 1], mean_field(votes[:, k : k + 1], pairwise[k]))
    assert_refused(lambda: mean_field(votes[:, 1:], pairwise), "pairwise", "K")


@pytest.mark.parametrize(
    ("settings", "name"), [({"unary": "first"}, "unary"), ({"returns": "probabilities"}, "returns")]
)
def test_unknown_settings_are_refused(settings: dict[str, str], name: str) -> None:
    votes, pairwise = draw(VOTES, STANDARD, 1), draw("J J", STANDARD, 2)
    assert_refused(lambda: mean_field(votes, pairwise, **settings), name, repr(settings[name]))


def test_a_single_factor_is_refused() -> None:
    votes, left = draw(VOTES, STANDARD, 1), draw("J r", STANDARD, 2)
    assert_refused(lambda: mean_field(votes, (left,)), "pairwise", "two factors", "got 1")


@pytest.mark.parametrize("low_rank", [False, True])
def test_operands_of_different_dtypes_are_refused(low_rank: bool) -> None:
    votes, pairwise = draw(VOTES, STANDARD, 1, torch.float16), draw("J J", STANDARD, 2, torch.float32)
    given_pairwise = (pairwise, pairwise) if low_rank else pairwise
    assert_refused(lambda: mean_field(votes, given_pairwise), "dtype", "torch.float16", "torch.float32")


def test_one_matrix_per_capsule_wants_attributes() -> None:
    assert_refused(lambda: MeanFieldCRF(4, capsules=3), "attributes", "per capsule")


def test_low_rank_together_with_one_matrix_per_attribute_is_refused() -> None:
    assert_refused(lambda: MeanFieldCRF(4, attributes=3, rank=2), "rank", "both")

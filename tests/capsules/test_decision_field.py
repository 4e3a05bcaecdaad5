"""Mean field between decisions: the reference, what is known, the start, the global branch, and odd numbers."""

import math

import pytest
import torch
from contract import assert_close_to, assert_refused, tolerance
from hypothesis import given
from hypothesis import strategies as st
from operands import Sizes, assert_equals_reference, by_reference, draw, draw_probabilities, seeds, sizes_up_to
from torch import Tensor

import reference
from contextcaps.capsules import (
    DecisionField,
    Groups,
    decision_field,
    lengths,
    rescale_decisions,
    score_logits,
)

SIZES: Sizes = {"B": 3, "J": 5, "I": 4, "r": 2}
NOTHING = math.nan


def draw_known(sizes: Sizes, seed: int) -> Tensor:
    """[B, J]: a third present, a third absent, a third not known."""
    chances = draw_probabilities("B J", sizes, seed)
    known = torch.full_like(chances, NOTHING)
    known[chances < 1 / 3], known[chances > 2 / 3] = 0.0, 1.0
    return known


@given(
    sizes=sizes_up_to(B=3, J=6, r=3),
    seed=seeds,
    iterations=st.integers(0, 3),
    low_rank=st.booleans(),
    tells=st.booleans(),
)
def test_equals_reference(sizes: Sizes, seed: int, iterations: int, low_rank: bool, tells: bool) -> None:
    unary, prior = 2 * draw("B J", sizes, seed), draw_probabilities("J", sizes, seed + 1)
    left, right, matrix = (draw(legend, sizes, seed + 2 + n) for n, legend in enumerate(("J r", "J r", "J J")))
    known = draw_known(sizes, seed + 5) if tells else None
    fast = decision_field(unary, (left, right) if low_rank else matrix, prior, iterations, known)
    whole = left @ right.T if low_rank else matrix
    scores, logits = by_reference(reference.decision_field, unary, whole, prior, iterations, known)
    assert_equals_reference(fast.scores, scores)
    assert_equals_reference(fast.logits, logits)


@pytest.mark.parametrize("tells", [False, True])
def test_gradients_equal_finite_differences(tells: bool) -> None:
    known = draw_known(SIZES, 9) if tells else None
    legends = ("B J", "J J", "J")
    operands = tuple(draw(legend, SIZES, seed).requires_grad_() for seed, legend in enumerate(legends))
    assert torch.autograd.gradcheck(lambda *given: decision_field(*given, 2, known), operands)
    left, right = draw("J r", SIZES, 7).requires_grad_(), draw("J r", SIZES, 8).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda unary, prior, *pair: decision_field(unary, pair, prior, 2, known),
        (operands[0], operands[2], left, right),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_each_dtype_is_finite_and_close_to_float64(dtype: torch.dtype) -> None:
    unary, pairwise = draw("B J", SIZES, 1, dtype).requires_grad_(), draw("J J", SIZES, 2, dtype).requires_grad_()
    prior, known = draw_probabilities("J", SIZES, 3, dtype), draw_known(SIZES, 4).to(dtype)
    exact = decision_field(unary.double(), pairwise.double(), prior.double(), known=known.double())
    found = decision_field(unary, pairwise, prior, known=known)
    assert found.scores.dtype == found.logits.dtype == dtype
    assert_close_to(found.scores, exact.scores, tolerance(dtype))
    (found.scores * draw("B J", SIZES, 5, dtype)).sum().backward()
    for tensor in (unary, pairwise):
        assert tensor.grad.isfinite().all()
        assert tensor.grad.any()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = decision_field(unary.float(), pairwise.float(), prior.float())
    exact = decision_field(unary.double(), pairwise.double(), prior.double())
    assert_close_to(mixed.scores, exact.scores, tolerance(torch.bfloat16))


def test_what_is_known_is_kept_and_heard() -> None:
    """W[j', j] is what class j' says to class j; a class that is as likely as ever says nothing."""
    pairwise, prior = torch.zeros(3, 3), torch.tensor([0.25, 0.5, 0.5])
    pairwise[0, 2] = 4.0
    unary = torch.tensor([[1.0, -1.0, 0.5]])

    def told(value: float) -> Tensor:
        return decision_field(unary, pairwise, prior, known=torch.tensor([[value, NOTHING, NOTHING]])).scores[0]

    for value in (0.0, 1.0):
        expected = [value, torch.sigmoid(torch.tensor(-1.0)), torch.sigmoid(torch.tensor(0.5 + 4 * (value - 0.25)))]
        torch.testing.assert_close(told(value), torch.tensor(expected))
    torch.testing.assert_close(told(0.25)[1:], torch.sigmoid(unary[0, 1:]))


def test_nothing_known_is_the_same_as_no_knowledge() -> None:
    unary, pairwise, prior = draw("B J", SIZES, 1), draw("J J", SIZES, 2), draw_probabilities("J", SIZES, 3)
    nothing = torch.full_like(unary, NOTHING)
    assert decision_field(unary, pairwise, prior, known=nothing).scores.equal(
        decision_field(unary, pairwise, prior).scores
    )


def test_a_known_class_gets_no_gradient_and_the_diagonal_none() -> None:
    unary, pairwise = draw("B J", SIZES, 1).requires_grad_(), draw("J J", SIZES, 2).requires_grad_()
    known = draw_known(SIZES, 4)
    scores = decision_field(unary, pairwise, draw_probabilities("J", SIZES, 3), known=known).scores
    (scores * draw("B J", SIZES, 5)).sum().backward()
    given = ~known.isnan()
    assert 0 < given.sum() < given.numel()
    assert not unary.grad[given].any()
    assert unary.grad[~given].all()
    assert not pairwise.grad.diagonal().any()


FORMS = {
    "full": {},
    "low rank": {"rank": 2},
    "global branch": {"global_channels": 7},
    "low rank, global branch": {"rank": 2, "global_channels": 7},
}
FEATURES = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))


def pooled(form: dict) -> Tensor | None:
    return FEATURES if "global_channels" in form else None


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_module_starts_as_the_identity_and_every_weight_has_a_gradient(form: dict) -> None:
    module = DecisionField(5, **form)
    scores = draw_probabilities("B J", SIZES, 1, torch.float32)
    found = module(score_logits(scores), features=pooled(form))
    torch.testing.assert_close(found.scores, scores.clamp(1e-4, 1 - 1e-4))
    (found.scores * draw("B J", SIZES, 2, torch.float32)).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name  # otherwise several processes would wait for each other
        assert parameter.grad.isfinite().all(), name
    moved = [module.weight if "rank" not in form else module.right, module.raw_sharpness, module.bias]
    assert all(parameter.grad.any() for parameter in moved)
    assert module.global_branch is None or module.global_branch.grad.any()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_module_is_the_function(form: dict) -> None:
    module = DecisionField(5, 3, **form).double()
    generator = torch.Generator().manual_seed(2)
    for parameter in module.parameters():
        parameter.data.normal_(generator=generator)
    module.set_prior(draw_probabilities("J", SIZES, 3))
    logits, known = draw("B J", SIZES, 4), draw_known(SIZES, 5)
    unary = torch.log1p(module.raw_sharpness.exp()) * logits + module.bias
    matrix = 10 * (module.left @ module.right.T if "rank" in form else module.weight)
    features = None if pooled(form) is None else pooled(form).double()
    if features is not None:
        branch = module.global_branch
        said = [[sum(w * f for w, f in zip(row, each, strict=True)) for row in branch] for each in features]
        unary = unary + torch.tensor(said)
    found = module(logits, known, features)
    trust = float(module.trust)
    scores, _ = by_reference(reference.decision_field, unary, matrix, module.prior, 3, known, trust)
    assert_equals_reference(found.scores.detach(), scores)


def test_hidden_units_by_loops() -> None:
    groups = Groups(draw("K h", {"K": 10, "h": 4}, 1), draw("h", {"h": 4}, 2), draw("h J", {"h": 4, "J": 5}, 3))
    unary, known, prior = draw("B J", SIZES, 4), draw_known(SIZES, 5), draw_probabilities("J", SIZES, 6)
    found = decision_field(unary, torch.zeros(5, 5).double(), prior, 1, known, groups=groups)
    for b in range(len(unary)):
        given = [not math.isnan(float(value)) for value in known[b]]
        chances = [float(known[b, j]) if given[j] else 1 / (1 + math.exp(-float(unary[b, j]))) for j in range(5)]
        for j in range(5):
            expected = float(unary[b, j])
            for h in range(4):
                heard = silent = float(groups.bias[h])
                for other in range(5):
                    heard += (chances[other] - float(prior[other])) * float(groups.inward[other, h])
                    heard += float(groups.inward[5 + other, h]) if given[other] else 0.0
                expected += (max(heard, 0.0) - max(silent, 0.0)) * float(groups.outward[h, j])
            assert float(found.logits[b, j]) == pytest.approx(expected, abs=1e-9)


def test_started_at_potentials_it_changes_nothing_until_told() -> None:
    module = DecisionField(5).double()
    potentials = draw("J J", {"J": 5}, 1)
    module.start_at(potentials)
    module.set_prior(draw_probabilities("J", SIZES, 3))
    logits, known = draw("B J", SIZES, 4), draw_known(SIZES, 5)
    torch.testing.assert_close(module(logits).scores, torch.sigmoid(logits))
    scores, _ = by_reference(reference.decision_field, logits, potentials, module.prior, 2, known, 0.0)
    assert_equals_reference(module(logits, known).scores.detach(), scores)
    module(logits).scores.sum().backward()
    assert module.trust.grad != 0  # it can learn to believe
    with pytest.raises(ValueError, match="low rank"):
        DecisionField(5, rank=2).start_at(potentials)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_module_in_half_precision(dtype: torch.dtype) -> None:
    module = DecisionField(5, global_channels=7).to(dtype)
    found = module(draw("B J", SIZES, 1, dtype), draw_known(SIZES, 2).to(dtype), FEATURES.to(dtype))
    assert found.scores.dtype == dtype
    assert found.scores.isfinite().all()


def test_prior_is_kept_with_the_weights_and_checked() -> None:
    module = DecisionField(3)
    assert module.prior.tolist() == [0.5, 0.5, 0.5]
    module.set_prior(torch.tensor([0.25, 0.0, 1.0], dtype=torch.float64))
    assert module.state_dict()["prior"].tolist() == [0.25, 0.0, 1.0]
    assert_refused(lambda: module.set_prior(torch.tensor([0.5, 0.5])), "frequencies", "[J=3]")
    assert_refused(lambda: module.set_prior(torch.tensor([0.5, 0.5, 2.0])), "frequencies", "0 to 1")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_dead_and_saturated_capsules_are_finite(dtype: torch.dtype) -> None:
    decisions = torch.zeros(1, 4, 3, dtype=dtype)
    decisions[0, 1], decisions[0, 2, 0], decisions[0, 3, 0] = 1e-6, 1.0, 0.5
    decisions.requires_grad_()
    module = DecisionField(4).to(dtype)
    found = module(score_logits(lengths(decisions)))
    rescaled = rescale_decisions(decisions, found.scores)
    assert rescaled.dtype == dtype
    assert not rescaled[0, 0].any()
    (rescaled.sum() + found.scores.sum()).backward()
    assert decisions.grad.isfinite().all()
    assert rescaled.isfinite().all()


def test_wrong_input_is_refused() -> None:
    unary, pairwise, prior = torch.zeros(2, 3), torch.zeros(3, 3), torch.zeros(3)
    for known in (torch.zeros(2, 4), torch.zeros(1, 3), torch.zeros(3)):
        assert_refused(lambda known=known: decision_field(unary, pairwise, prior, known=known), "known", "B=2, J=3")
    assert_refused(lambda: decision_field(unary, pairwise, prior, known=torch.ones(2, 3).bool()), "known", "NaN not")
    assert_refused(lambda: decision_field(unary, pairwise, prior, known=torch.full((2, 3), 2.0)), "known", "0 to 1")
    assert_refused(lambda: decision_field(unary, torch.zeros(3, 2), prior), "pairwise", "[3, 2]")
    assert_refused(lambda: decision_field(unary, (torch.zeros(3, 1),), prior), "pairwise", "got 1")
    assert_refused(lambda: decision_field(unary, pairwise, torch.zeros(2)), "prior", "[2]")
    assert_refused(lambda: decision_field(unary * NOTHING, pairwise, prior), "unary", "NaN")
    assert_refused(lambda: DecisionField(3, 0), "iterations", "at least 1")
    assert_refused(lambda: DecisionField(3, global_channels=0), "global_channels", "at least 1")
    assert_refused(lambda: DecisionField(3, global_channels=4)(unary), "features")
    wrong = (unary, None, torch.ones(len(unary), 5))
    assert_refused(lambda: DecisionField(3, global_channels=4)(*wrong), "features", "C=4")

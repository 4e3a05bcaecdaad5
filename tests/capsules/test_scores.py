"""Scores as log-odds, and as the lengths of decision capsules."""

import torch
from hypothesis import given
from operands import Sizes, draw, draw_probabilities, seeds, sizes_up_to

import reference
from contextcaps.capsules import length_logits, length_of_logits, lengths, rescale_decisions, squash

SIZES: Sizes = {"B": 3, "J": 5, "I": 4}


@given(sizes=sizes_up_to(B=3, J=4, I=3), seed=seeds)
def test_rescaled_decisions_have_the_scores_as_lengths(sizes: Sizes, seed: int) -> None:
    decisions, scores = squash(draw("B J I", sizes, seed)), draw_probabilities("B J", sizes, seed + 1)
    found = rescale_decisions(decisions, scores)
    torch.testing.assert_close(lengths(found), scores * (lengths(decisions) / 1e-4).clamp_max(1))
    for b in range(sizes["B"]):
        for j in range(sizes["J"]):
            size = reference.length(decisions[b, j].numpy())
            if size >= 1e-4:
                torch.testing.assert_close(found[b, j], scores[b, j] / size * decisions[b, j])


def test_gradients_of_rescaling_equal_finite_differences() -> None:
    operands = (draw("B J I", SIZES, 1).requires_grad_(), draw_probabilities("B J", SIZES, 2).requires_grad_())
    assert torch.autograd.gradcheck(rescale_decisions, operands)


def test_logits_of_lengths_keep_their_order_and_lead_back_to_them() -> None:
    sizes = torch.cat([torch.zeros(1), torch.logspace(-9, -1, 50), torch.linspace(0.2, 1, 50)])
    logits = length_logits(sizes)
    assert logits.isfinite().all()
    assert (logits.diff() > 0).all()
    torch.testing.assert_close(length_of_logits(logits), sizes, rtol=1e-4, atol=1e-7)
    assert torch.equal(length_logits(torch.tensor([1.001])), logits[-1:])  # a length beyond 1 by rounding
    assert torch.autograd.gradcheck(length_logits, torch.tensor([0.001, 0.3, 0.99]).double().requires_grad_())

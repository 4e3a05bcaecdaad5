"""Scores as log-odds, and as the lengths of decision capsules."""

import torch
from hypothesis import given
from operands import Sizes, draw, draw_probabilities, seeds, sizes_up_to

import reference
from contextcaps.capsules import lengths, rescale_decisions, squash

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

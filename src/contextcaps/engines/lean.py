"""Operators of the lean engine: `route`, `weighted_sum` and `correlation_weights`, each with all its gradients.

Plain PyTorch, the votes of a few capsules at a time. They are custom operators with fake kernels and autograd formulas,
so that torch.compile and torch.export see through them.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from contextcaps.engines.lean_correlation import correlation_weights
from contextcaps.engines.lean_crf import LeanCRF
from contextcaps.engines.lean_routing import Record, route_vjp, weighted_sum_vjp
from contextcaps.engines.lean_routing import route as route_tiles
from contextcaps.engines.lean_routing import weighted_sum as sum_tiles
from contextcaps.engines.lean_votes import Gradients, LeanVotes
from contextcaps.engines.operands import (
    Factors,
    VoteOperands,
    empty_like,
    given_tensors,
    needed_gradients,
    split_settings,
)

__all__ = ["correlation_weights", "route", "weighted_sum"]


def route(
    votes: VoteOperands,
    iterations: int,
    gain: Tensor,
    bias: Tensor | None = None,
    factors: Tensor | None = None,
    couplings: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return decisions and sums [B, J, I] by dynamic routing; the arguments are those of `Engine.route`."""
    votes.require_routing(gain, bias, factors, couplings)
    both, *_ = _route(*_operands(votes), factors, couplings, bias, gain, *_crf_settings(votes), iterations)
    return both[0], both[1]


def weighted_sum(votes: VoteOperands, weights: Tensor) -> Tensor:
    """Return Σ_k weights_kj · vote_kj, [B, J, I], with weights [B, K, J]."""
    votes.require_weights("weights", weights, per_class=True)
    return _weighted_sum(*_operands(votes), weights, *_crf_settings(votes))


def _operands(votes: VoteOperands) -> tuple[Tensor | None, ...]:
    """Return capsules, vote weights and both potentials, in the precision to compute in."""
    given = (votes.capsules, votes.weight, *votes.potentials)
    return tuple(None if each is None else each.to(votes.dtype) for each in given)


def _crf_settings(votes: VoteOperands) -> tuple[int, bool]:
    return votes.crf_iterations, votes.crf is not None and votes.crf.literal


def _votes(
    capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None, *, crf_iterations: int,
    literal: bool, keep: bool = False,
) -> LeanVotes:  # fmt: skip
    potentials = given_tensors(pairwise, right)
    crf = LeanCRF(potentials, crf_iterations, literal) if potentials else None
    return LeanVotes(capsules, weight, crf, keep)


# Dynamic routing


@torch.library.custom_op("contextcaps::lean_route", mutates_args=())
def _route(
    capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None, factors: Tensor | None,
    couplings: Tensor | None, bias: Tensor | None, gain: Tensor, crf_iterations: int, literal: bool, iterations: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return decisions and sums [2, B, J, I]; the corrected votes, or nothing; each iteration's sums and states."""
    votes = _votes(
        capsules, weight, pairwise, right, crf_iterations=crf_iterations, literal=literal, keep=iterations > 1
    )
    record = _empty_record(votes, iterations)
    both, kept = route_tiles(votes, Factors(factors, couplings), record, gain, bias)
    return both, kept, *record


def _empty_record(votes: LeanVotes, iterations: int) -> Record:
    sums, states = (votes.zeros(iterations, votes.shape[0], dtype=votes.wide) for _ in range(2))
    return Record(sums, states)


@_route.register_fake
def _(*given: Any) -> tuple[Tensor, ...]:
    *operands, _, _, bias, _, crf_iterations, literal, iterations = given
    votes = _votes(*operands, crf_iterations=crf_iterations, literal=literal, keep=iterations > 1)
    capsules, weight, *_ = operands
    kind = capsules.dtype if bias is None else torch.promote_types(capsules.dtype, bias.dtype)
    both = capsules.new_empty(2, capsules.shape[0], *weight.shape[2:], dtype=kind)
    return both, votes.empty() if votes.keeps_all else capsules.new_empty(0), *_empty_record(votes, iterations)


@torch.library.custom_op("contextcaps::lean_route_backward", mutates_args=())
def _route_backward(
    gradient: Tensor, capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None,
    factors: Tensor | None, couplings: Tensor | None, bias: Tensor | None, gain: Tensor, kept: Tensor, sums: Tensor,
    states: Tensor, crf_iterations: int, literal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of capsules, weight, potentials, factors, couplings, bias; no elements where not given."""
    votes = _votes(
        capsules, weight, pairwise, right, crf_iterations=crf_iterations, literal=literal, keep=len(sums) > 1
    )
    votes.kept = kept if kept.numel() else None
    by_factors, by_bias, found = route_vjp(votes, Factors(factors, couplings), Record(sums, states), gain, gradient)
    of_votes, of_couplings = (capsules.new_empty(0) if each is None else each for each in by_factors)
    of_bias = capsules.new_empty(0) if bias is None else by_bias.to(bias.dtype)
    return *_by_inputs(votes, found), of_votes, of_couplings, of_bias


def _by_inputs(votes: LeanVotes, found: Gradients) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of capsules, weight and both potentials; no elements for potentials that are not given."""
    by_capsules, by_weight, *by_potentials = votes.as_given(found)
    by_pairwise, by_right = (*by_potentials, *(votes.weight.new_empty(0) for _ in range(2)))[:2]
    return by_capsules, by_weight, by_pairwise, by_right


@_route_backward.register_fake
def _(gradient: Tensor, *given: Any) -> tuple[Tensor, ...]:
    *operands, factors, couplings, bias, _, _, sums, _, _, _ = given
    weight = operands[1]
    by_bias = weight.new_empty(0) if bias is None else torch.empty_like(sums[0, 0]).to(bias.dtype)
    return *_empty_by_inputs(*operands), empty_like(factors, weight), empty_like(couplings, weight), by_bias


def _empty_by_inputs(capsules: Tensor, weight: Tensor, *potentials: Tensor | None) -> tuple[Tensor, ...]:
    """Return tensors like those of `_by_inputs`, not computed."""
    by_capsule = torch.empty_like(capsules.transpose(0, 1), memory_format=torch.contiguous_format).transpose(0, 1)
    return by_capsule, *(empty_like(each, weight) for each in (weight, *potentials))


# Weighted sums


@torch.library.custom_op("contextcaps::lean_weighted_sum", mutates_args=())
def _weighted_sum(
    capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None, weights: Tensor,
    crf_iterations: int, literal: bool,
) -> Tensor:  # fmt: skip
    return sum_tiles(_votes(capsules, weight, pairwise, right, crf_iterations=crf_iterations, literal=literal), weights)


@_weighted_sum.register_fake
def _(*given: Any) -> Tensor:
    *operands, _, crf_iterations, literal = given
    votes = _votes(*operands, crf_iterations=crf_iterations, literal=literal)
    return votes.zeros(votes.shape[0], dtype=votes.wide).to(votes.capsules.dtype)


@torch.library.custom_op("contextcaps::lean_weighted_sum_backward", mutates_args=())
def _weighted_sum_backward(
    gradient: Tensor, capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None, weights: Tensor,
    crf_iterations: int, literal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of capsules, weight, both potentials and the weights; no elements where not given."""
    votes = _votes(capsules, weight, pairwise, right, crf_iterations=crf_iterations, literal=literal)
    by_weights, found = weighted_sum_vjp(votes, weights, gradient)
    return *_by_inputs(votes, found), by_weights


@_weighted_sum_backward.register_fake
def _(gradient: Tensor, *given: Any) -> tuple[Tensor, ...]:
    *operands, weights, _, _ = given
    batch, count, classes = weights.shape
    by_weights = operands[0].new_empty(count, batch, classes).transpose(0, 1).to(weights.dtype)
    return *_empty_by_inputs(*operands), by_weights


# Autograd of both


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: Tensor | tuple[Tensor, ...]) -> None:
    """Save the inputs, and after them all results but the first, which are for the backward operator alone."""
    kept = output[1:] if isinstance(output, tuple) else ()
    ctx.mark_non_differentiable(*kept)
    ctx.set_materialize_grads(False)
    tensors, settings = split_settings(inputs)
    ctx.crf_settings = settings[:2]
    ctx.save_for_backward(*tensors, *kept)


def _backward(operator: Any, ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    """Return the inputs' gradients by a backward operator."""
    found = () if gradient is None else operator(gradient, *ctx.saved_tensors, *ctx.crf_settings)
    return needed_gradients(ctx, found)


_route.register_autograd(partial(_backward, _route_backward), setup_context=_set_up)
_weighted_sum.register_autograd(partial(_backward, _weighted_sum_backward), setup_context=_set_up)

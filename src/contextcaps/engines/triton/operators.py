"""Operators of the triton engine: `route`, `weighted_sum` and `correlation_weights`, each with all its gradients.

They are custom operators with fake kernels and autograd formulas, so that torch.compile, CUDA graphs and torch.export
see through them. A forward operator also returns what its backward operator needs, above all the corrected votes, over
which that one writes their gradient; a second backward pass through the same graph computes the votes anew. Graphs of
torch.compile are functional: there the votes are copied once before they are written over.
"""

from typing import Any

import torch
from torch import Tensor

from contextcaps.engines.operands import Factors, VoteOperands, empty_like, given_tensors, needed_gradients
from contextcaps.engines.triton.correlation import correlation_weights
from contextcaps.engines.triton.routing import Routing
from contextcaps.engines.triton.votes import CompactVotes

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
    both, *_ = _route(
        votes.capsules, votes.weight, *votes.potentials, factors, couplings, bias, gain, votes.crf_iterations,
        iterations, votes.dtype,
    )  # fmt: skip
    return both[0], both[1]


def weighted_sum(votes: VoteOperands, weights: Tensor) -> Tensor:
    """Return Σ_k weights_kj · vote_kj, [B, J, I], with weights [B, K, J]."""
    votes.require_weights("weights", weights, per_class=True)
    sums, *_ = _weighted_sum(
        votes.capsules, votes.weight, *votes.potentials, weights, votes.crf_iterations, votes.dtype
    )
    return sums


# Dynamic routing


@torch.library.custom_op("contextcaps::triton_route", mutates_args=())
def _route(
    capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None, factors: Tensor | None,
    couplings: Tensor | None, bias: Tensor | None, gain: Tensor, crf_iterations: int, iterations: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return decisions and sums [2, B, J, I]; compact votes, capsules and weight; each iteration's sums and states."""
    with torch.cuda.device_of(capsules):
        source = CompactVotes.prepare(capsules, weight, given_tensors(pairwise, right), crf_iterations, dtype)
        votes = source.compute()
        results = Routing(source, votes).route(Factors(factors, couplings), iterations, gain, bias)
    both, sums, states = results
    return both, votes, source.capsules, source.weight, sums, states


@_route.register_fake
def _(
    capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None, factors: Tensor | None,
    couplings: Tensor | None, bias: Tensor | None, gain: Tensor, crf_iterations: int, iterations: int,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:  # fmt: skip
    source = CompactVotes.prepare(capsules, weight, given_tensors(pairwise, right), crf_iterations, dtype)
    votes = source.empty()
    both, sums, states = Routing(source, votes).empty_results(iterations, bias)
    return both, votes, source.capsules, source.weight, sums, states


@torch.library.custom_op("contextcaps::triton_route_backward", mutates_args=("votes",))
def _route_backward(
    gradient: Tensor, votes: Tensor, capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None,
    factors: Tensor | None, couplings: Tensor | None, bias: Tensor | None, gain: Tensor, sums: Tensor, states: Tensor,
    crf_iterations: int, to_inputs: bool, capsules_dtype: torch.dtype, weight_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of capsules, weight, potentials if `to_inputs`; and of factors, couplings and bias."""
    _, batch, classes, _ = gradient.shape
    source = CompactVotes(capsules, weight, batch, classes, given_tensors(pairwise, right), crf_iterations).cast()
    by_factors, by_bias = Routing(source, votes).route_vjp(
        Factors(factors, couplings), gain, bias, sums, states, gradient
    )
    of_votes, of_couplings, of_bias = (votes.new_empty(0) if each is None else each for each in (*by_factors, by_bias))
    by_inputs = _inputs_vjp(source, votes, to_inputs, capsules_dtype, weight_dtype, pairwise, right)
    return *by_inputs, of_votes, of_couplings, of_bias


@_route_backward.register_fake
def _(
    gradient: Tensor, votes: Tensor, capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None,
    factors: Tensor | None, couplings: Tensor | None, bias: Tensor | None, gain: Tensor, sums: Tensor, states: Tensor,
    crf_iterations: int, to_inputs: bool, capsules_dtype: torch.dtype, weight_dtype: torch.dtype,
) -> tuple[Tensor, ...]:  # fmt: skip
    _, batch, classes, _ = gradient.shape
    source = CompactVotes(capsules, weight, batch, classes, given_tensors(pairwise, right), crf_iterations)
    by_inputs = _empty_inputs_vjp(source, to_inputs, capsules_dtype, weight_dtype, pairwise, right)
    by_bias = votes.new_empty(0)
    if bias is not None:
        wide = votes.new_empty(source.decision, source.columns, dtype=torch.float32)
        by_bias = Routing(source, votes).as_bias(wide).to(bias.dtype)
    return *by_inputs, empty_like(factors, votes), empty_like(couplings, votes), by_bias


def _inputs_vjp(
    source: CompactVotes, gradient: Tensor, wanted: bool, capsules: torch.dtype, weight: torch.dtype,
    *potentials: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of capsules, weight and both potentials, for that of the votes; or no elements."""
    found = source.vjp(gradient) if wanted else ()
    kinds = (capsules, weight, *(each.dtype for each in given_tensors(*potentials)))
    padded = (*(each.to(kind) for each, kind in zip(found, kinds, strict=wanted)), *[None] * 4)[:4]
    by_capsules, by_weight, by_pairwise, by_right = (gradient.new_empty(0) if each is None else each for each in padded)
    return by_capsules, by_weight, by_pairwise, by_right


def _empty_inputs_vjp(
    source: CompactVotes, wanted: bool, capsules: torch.dtype, weight: torch.dtype, *potentials: Tensor | None
) -> tuple[Tensor, ...]:
    """Return tensors like those of `_inputs_vjp`, not computed."""
    if not wanted:
        return tuple(source.weight.new_empty(0) for _ in range(4))
    both = (torch.empty_like(each, dtype=torch.float32) for each in (source.capsules, source.weight))
    by_capsule, by_weight = source.as_given(*both)
    return by_capsule.to(capsules), by_weight.to(weight), *(empty_like(each, source.weight) for each in potentials)


def _set_up_route(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    capsules, weight, pairwise, right, factors, couplings, bias, gain, ctx.crf_iterations, *_ = inputs
    _, votes, by_group, by_attribute, sums, states = output
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # the votes' would be as large as they are
    ctx.votes = votes.detach()
    ctx.dtypes = (capsules.dtype, weight.dtype)
    ctx.save_for_backward(by_group, by_attribute, pairwise, right, factors, couplings, bias, gain, sums, states)


def _back_through_route(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * len(ctx.needs_input_grad)
    saved = ctx.saved_tensors
    votes = _take_votes(ctx, gradient.shape[1], gradient.shape[2], *saved[:4])
    found = _route_backward(gradient, votes, *saved, ctx.crf_iterations, any(ctx.needs_input_grad[:4]), *ctx.dtypes)
    return *needed_gradients(ctx, found), None, None, None, None


def _take_votes(
    ctx: Any, batch: int, classes: int, capsules: Tensor, weight: Tensor, *potentials: Tensor | None
) -> Tensor:
    """Return the corrected votes, to be written over: those that were kept or, in a second pass, computed anew."""
    votes, ctx.votes = ctx.votes, None
    if votes is not None:
        return votes
    source = CompactVotes(capsules, weight, batch, classes, given_tensors(*potentials), ctx.crf_iterations).cast()
    with torch.no_grad(), torch.autocast(capsules.device.type, enabled=False):
        return source.compute()


_route.register_autograd(_back_through_route, setup_context=_set_up_route)


# Weighted sums


@torch.library.custom_op("contextcaps::triton_weighted_sum", mutates_args=())
def _weighted_sum(
    capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None, weights: Tensor,
    crf_iterations: int, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return sums [B, J, I]; votes, capsules and weight in compact form."""
    with torch.cuda.device_of(capsules):
        source = CompactVotes.prepare(capsules, weight, given_tensors(pairwise, right), crf_iterations, dtype)
        votes = source.compute()
        return Routing(source, votes).weighted_sum(weights), votes, source.capsules, source.weight


@_weighted_sum.register_fake
def _(
    capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None, weights: Tensor,
    crf_iterations: int, dtype: torch.dtype,
) -> tuple[Tensor, ...]:  # fmt: skip
    source = CompactVotes.prepare(capsules, weight, given_tensors(pairwise, right), crf_iterations, dtype)
    routing = Routing(source, source.empty())
    wide = capsules.new_empty(1, source.batch, source.decision, source.columns, dtype=torch.float32)
    return routing.as_sums(wide), routing.votes, source.capsules, source.weight


@torch.library.custom_op("contextcaps::triton_weighted_sum_backward", mutates_args=("votes",))
def _weighted_sum_backward(
    gradient: Tensor, votes: Tensor, capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None,
    weights: Tensor, crf_iterations: int, to_inputs: bool, capsules_dtype: torch.dtype, weight_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of capsules, weight and both potentials, if `to_inputs`; and of the weights."""
    batch, classes, _ = gradient.shape
    source = CompactVotes(capsules, weight, batch, classes, given_tensors(pairwise, right), crf_iterations).cast()
    by_weights = Routing(source, votes).weighted_sum_vjp(weights, gradient)
    by_inputs = _inputs_vjp(source, votes, to_inputs, capsules_dtype, weight_dtype, pairwise, right)
    return *by_inputs, by_weights


@_weighted_sum_backward.register_fake
def _(
    gradient: Tensor, votes: Tensor, capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None,
    weights: Tensor, crf_iterations: int, to_inputs: bool, capsules_dtype: torch.dtype, weight_dtype: torch.dtype,
) -> tuple[Tensor, ...]:  # fmt: skip
    batch, classes, _ = gradient.shape
    source = CompactVotes(capsules, weight, batch, classes, given_tensors(pairwise, right), crf_iterations)
    by_inputs = _empty_inputs_vjp(source, to_inputs, capsules_dtype, weight_dtype, pairwise, right)
    return *by_inputs, empty_like(weights, votes)


def _set_up_weighted_sum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    capsules, weight, pairwise, right, weights, ctx.crf_iterations, _ = inputs
    _, votes, by_group, by_attribute = output
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # the votes' would be as large as they are
    ctx.votes = votes.detach()
    ctx.dtypes = (capsules.dtype, weight.dtype)
    ctx.save_for_backward(by_group, by_attribute, pairwise, right, weights)


def _back_through_weighted_sum(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * len(ctx.needs_input_grad)
    saved = ctx.saved_tensors
    votes = _take_votes(ctx, gradient.shape[0], gradient.shape[1], *saved[:4])
    to_inputs = any(ctx.needs_input_grad[:4])
    found = _weighted_sum_backward(gradient, votes, *saved, ctx.crf_iterations, to_inputs, *ctx.dtypes)
    return *needed_gradients(ctx, found), None, None


_weighted_sum.register_autograd(_back_through_weighted_sum, setup_context=_set_up_weighted_sum)

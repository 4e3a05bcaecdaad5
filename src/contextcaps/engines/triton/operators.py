"""Operators of the triton engine: `route`, `weighted_sum` and `correlation_weights`, each with all its gradients.

They are custom operators with fake kernels and autograd formulas, so that torch.compile, CUDA graphs and torch.export
see through them. A forward operator also returns what its backward operator needs, above all the corrected votes, over
which that one writes their gradient; a second backward pass through the same graph computes the votes anew. Graphs of
torch.compile are functional: there the votes are copied once before they are written over.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from contextcaps.engines.operands import (
    Factors,
    VoteOperands,
    empty_like,
    given_tensors,
    is_plain_call,
    needed_gradients,
    split_settings,
)
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
    operator = _route_at_once if is_plain_call(votes.capsules) else _route
    both, *_ = operator(
        votes.capsules, votes.weight, *votes.potentials, factors, couplings, bias, gain, votes.crf_iterations,
        iterations, votes.dtype,
    )  # fmt: skip
    return both[0], both[1]


def weighted_sum(votes: VoteOperands, weights: Tensor) -> Tensor:
    """Return Σ_k weights_kj · vote_kj, [B, J, I], with weights [B, K, J]."""
    votes.require_weights("weights", weights, per_class=True)
    operator = _weighted_sum_at_once if is_plain_call(votes.capsules) else _weighted_sum
    sums, *_ = operator(votes.capsules, votes.weight, *votes.potentials, weights, votes.crf_iterations, votes.dtype)
    return sums


def _prepared(
    capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None, *, crf_iterations: int,
    dtype: torch.dtype,
) -> CompactVotes:  # fmt: skip
    return CompactVotes.prepare(capsules, weight, given_tensors(pairwise, right), crf_iterations, dtype)


def _compact(
    gradient: Tensor, capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None,
    *, crf_iterations: int,
) -> CompactVotes:  # fmt: skip
    """Return the source of the votes, from what a forward operator kept of it and the gradient […, B, J, I]."""
    batch, classes = gradient.shape[-3:-1]
    return CompactVotes(capsules, weight, batch, classes, given_tensors(pairwise, right), crf_iterations).cast()


# Dynamic routing


def _route_at_once(
    capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None, factors: Tensor | None,
    couplings: Tensor | None, bias: Tensor | None, gain: Tensor, crf_iterations: int, iterations: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return decisions and sums [2, B, J, I]; compact votes, capsules and weight; each iteration's sums and states."""
    with torch.cuda.device_of(capsules):
        source = _prepared(capsules, weight, pairwise, right, crf_iterations=crf_iterations, dtype=dtype)
        votes = source.compute()
        results = Routing(source, votes).route(Factors(factors, couplings), iterations, gain, bias)
    both, sums, states = results
    return both, votes, source.capsules, source.weight, sums, states


_route = torch.library.custom_op("contextcaps::triton_route", _route_at_once, mutates_args=())


@_route.register_fake
def _(*given: Any) -> tuple[Tensor, ...]:
    *operands, _, _, bias, _, crf_iterations, iterations, dtype = given
    source = _prepared(*operands, crf_iterations=crf_iterations, dtype=dtype)
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
    source = _compact(gradient, capsules, weight, pairwise, right, crf_iterations=crf_iterations)
    by_factors, by_bias = Routing(source, votes).route_vjp(
        Factors(factors, couplings), gain, bias, sums, states, gradient
    )
    of_votes, of_couplings, of_bias = (votes.new_empty(0) if each is None else each for each in (*by_factors, by_bias))
    by_inputs = _inputs_vjp(source, votes, to_inputs, capsules_dtype, weight_dtype, pairwise, right)
    return *by_inputs, of_votes, of_couplings, of_bias


@_route_backward.register_fake
def _(gradient: Tensor, votes: Tensor, *given: Any) -> tuple[Tensor, ...]:
    *operands, factors, couplings, bias, _, _, _, crf_iterations, to_inputs, capsules, weight = given
    source = _compact(gradient, *operands, crf_iterations=crf_iterations)
    by_inputs = _empty_inputs_vjp(source, to_inputs, capsules, weight, *operands[2:])
    by_bias = votes.new_empty(0)
    if bias is not None:
        wide = votes.new_empty(source.decision, source.columns, dtype=torch.float32)
        by_bias = Routing(source, votes).as_bias(wide).to(bias.dtype)
    return *by_inputs, empty_like(factors, votes), empty_like(couplings, votes), by_bias


# Weighted sums


def _weighted_sum_at_once(
    capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None, weights: Tensor,
    crf_iterations: int, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return sums [B, J, I]; votes, capsules and weight in compact form."""
    with torch.cuda.device_of(capsules):
        source = _prepared(capsules, weight, pairwise, right, crf_iterations=crf_iterations, dtype=dtype)
        votes = source.compute()
        return Routing(source, votes).weighted_sum(weights), votes, source.capsules, source.weight


_weighted_sum = torch.library.custom_op("contextcaps::triton_weighted_sum", _weighted_sum_at_once, mutates_args=())


@_weighted_sum.register_fake
def _(*given: Any) -> tuple[Tensor, ...]:
    *operands, _, crf_iterations, dtype = given
    source = _prepared(*operands, crf_iterations=crf_iterations, dtype=dtype)
    routing = Routing(source, source.empty())
    wide = source.capsules.new_empty(1, source.batch, source.decision, source.columns, dtype=torch.float32)
    return routing.as_sums(wide), routing.votes, source.capsules, source.weight


@torch.library.custom_op("contextcaps::triton_weighted_sum_backward", mutates_args=("votes",))
def _weighted_sum_backward(
    gradient: Tensor, votes: Tensor, capsules: Tensor, weight: Tensor, pairwise: Tensor | None, right: Tensor | None,
    weights: Tensor, crf_iterations: int, to_inputs: bool, capsules_dtype: torch.dtype, weight_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of capsules, weight and both potentials, if `to_inputs`; and of the weights."""
    source = _compact(gradient, capsules, weight, pairwise, right, crf_iterations=crf_iterations)
    by_weights = Routing(source, votes).weighted_sum_vjp(weights, gradient)
    by_inputs = _inputs_vjp(source, votes, to_inputs, capsules_dtype, weight_dtype, pairwise, right)
    return *by_inputs, by_weights


@_weighted_sum_backward.register_fake
def _(gradient: Tensor, votes: Tensor, *given: Any) -> tuple[Tensor, ...]:
    *operands, weights, crf_iterations, to_inputs, capsules, weight = given
    source = _compact(gradient, *operands, crf_iterations=crf_iterations)
    by_inputs = _empty_inputs_vjp(source, to_inputs, capsules, weight, *operands[2:])
    return *by_inputs, empty_like(weights, votes)


# Autograd of both


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


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save capsules and weight in compact form, the other inputs, and after them each iteration's sums and states."""
    (_, _, *tensors), settings = split_settings(inputs)
    _, votes, by_group, by_attribute, *record = output
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # the votes' would be as large as they are
    ctx.votes, ctx.crf_iterations, ctx.dtypes = votes.detach(), settings[0], (inputs[0].dtype, inputs[1].dtype)
    ctx.save_for_backward(by_group, by_attribute, *tensors, *record)


def _backward(operator: Any, ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    """Return the inputs' gradients by a backward operator, which writes over the votes.

    These are the votes that were kept or, in a second pass through the same graph, computed anew.
    """
    if gradient is None:
        return needed_gradients(ctx, ())
    votes, ctx.votes = ctx.votes, None
    if votes is None:
        with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
            votes = _compact(gradient, *ctx.saved_tensors[:4], crf_iterations=ctx.crf_iterations).compute()
    to_inputs = any(ctx.needs_input_grad[:4])
    found = operator(gradient, votes, *ctx.saved_tensors, ctx.crf_iterations, to_inputs, *ctx.dtypes)
    return needed_gradients(ctx, found)


_route.register_autograd(partial(_backward, _route_backward), setup_context=_set_up)
_weighted_sum.register_autograd(partial(_backward, _weighted_sum_backward), setup_context=_set_up)

"""Votes that nobody looks at as a tensor: what is summed and compared is computed tile by tile, forward and backward.

Everything that a head does with its votes [B, K, J, I], after the CRF, is one of two things:

- a weighted sum over capsules, s_j = Σ_k c_kj · vote_kj, with weights [B, K, J] (routing's couplings, CORR's weights);
- the agreement of each vote with one vector per class, a_kj = Σ_i vote_kji · v_ji (routing's logits).

Each is the other's gradient: d c_kj is the agreement of the votes with d s_j, and d v_j the sum with weights d a_kj.
And what reaches the votes themselves, c_kj · d s_j and d a_kj · v_j, is a product of two small tensors. So the backward
pass notes these pairs instead of adding up a gradient of the votes' size, and when all have been noted, goes once over
the capsules: each tile's gradient is put together from the pairs, and carried through the CRF to capsules, vote weights
and pairwise weights.
"""

import itertools
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from contextcaps.capsules.guards import require_tensor

__all__ = ["Backend", "ImplicitVotes", "Pair", "RoutingBackend", "RoutingFactors"]

Pair = tuple[Tensor, Tensor]
"""[B, K, J] and [B, J, I]: their product, over [B, K, J, I], is a part of the votes' gradient."""


class RoutingFactors(NamedTuple):
    """What a vote's weight in the routing is made of besides its coupling."""

    votes: Tensor | None
    """[B, K] or [B, K, J]: what votes are multiplied with before they are compared and summed."""
    couplings: Tensor | None
    """[B, K] or [B, K, J]: initial routing weights."""


class Backend(Protocol):
    """How the votes of given capsules are computed, tile by tile."""

    def prepare(self) -> None:
        """Whatever the forward pass keeps."""

    def sums(self, weights: Tensor) -> Tensor:
        """Σ_k weights_kj · vote_kj: [B, K, J] → [B, J, I]."""

    def agreements(self, vectors: Tensor) -> Tensor:
        """Σ_i vote_kji · vectors_ji: [B, J, I] → [B, K, J]."""

    def pull_back(self, pairs: list[Pair], agree: Tensor | None = None) -> tuple[Tensor, ...]:
        """The gradients of the backend's inputs for the votes' gradient Σ_n pairs[n][0] · pairs[n][1].

        With `agree`, vectors [B, J, I], the votes' agreements with them [B, K, J] come first, from the same tiles.
        """


class RoutingBackend(Backend, Protocol):
    """A backend that does dynamic routing (softmax over classes) by itself."""

    def route(self, factors: RoutingFactors, iterations: int, gain: Tensor, bias: Tensor | None) -> tuple[Tensor, Any]:
        """Decisions and sums [2, B, J, I], and whatever the way back needs."""

    def route_back(self, record: Any, gradient: Tensor) -> tuple[RoutingFactors, Tensor | None]:
        """The gradients of the factors and of the bias [J, I], for those of decisions and sums [2, B, J, I].

        That of the votes is kept, for a `pull_back` without pairs.
        """


class ImplicitVotes:
    """Votes [B, K, J, I] that can be summed and compared, but not looked at.

    Args:
        backend: what computes them.
        inputs: the tensors that they are made of (capsules, vote weights, pairwise weights), whose gradients
            `backend.pull_back` gives in this order.
        shape: (B, K, J, I).
        once: they will be summed once and nothing else, as by CORR. The backward pass is then a single one.
        dtype: of the votes; that of the inputs by default.
    """

    def __init__(
        self,
        backend: Backend,
        inputs: tuple[Tensor, ...],
        shape: tuple[int, ...],
        once: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.backend, self.shape, self.once = backend, shape, once
        self.factors: Tensor | None = None
        """[B, K, 1 or J]: what each vote is multiplied with."""
        self._pairs: dict[int, Pair] = {}  # by use, so that a second backward pass replaces what the first one noted
        self._uses = itertools.count()
        self._alone: list[bool] = []  # for each use, whether there may be no other
        self._pulled: list[Tensor] = []  # the inputs' gradients, where the only sum's backward pass gave them already
        self.dtype = inputs[0].dtype if dtype is None else dtype
        self._token: Tensor = _Made.apply(self, *inputs)

    @property
    def device(self) -> torch.device:
        return self._token.device

    def scaled(self, factors: Tensor) -> "ImplicitVotes":
        """The votes times factors [B, K, 1 or J]."""
        copy = object.__new__(ImplicitVotes)
        copy.__dict__ = {**self.__dict__, "factors": factors if self.factors is None else factors * self.factors}
        return copy

    def _use(self, alone: bool) -> None:
        """Refuse uses whose gradients the backend cannot tell apart."""
        if not torch.is_grad_enabled():
            return
        if self._alone and (alone or self._alone[0]):
            raise ValueError("votes: expected no other use of votes that are routed, or summed once; make them anew")
        self._alone.append(alone)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ_k weights_kj · vote_kj, [B, K, J] → [B, J, I]."""
        batch, count, classes, _ = self.shape
        require_tensor("weights", weights, "B K J", B=batch, K=count, J=classes)
        self._use(alone=self.once)
        weights = weights if self.factors is None else weights * self.factors
        return _Sum.apply(self, self._token, weights)

    def agreement(self, vectors: Tensor) -> Tensor:
        """Σ_i vote_kji · vectors_ji, [B, J, I] → [B, K, J]."""
        batch, _, classes, attributes = self.shape
        require_tensor("vectors", vectors, "B J I", B=batch, J=classes, I=attributes)
        self._use(alone=self.once)
        agreements = _Agreement.apply(self, self._token, vectors)  # [B, K, J]
        return agreements if self.factors is None else agreements * self.factors

    @property
    def routes(self) -> bool:
        """Whether `route` serves."""
        return bool(getattr(self.backend, "routes", False))

    def route(
        self, iterations: int, couplings: Tensor | None, bias: Tensor | None, gain: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        """Decisions and sums [B, J, I] by dynamic routing, with initial routing weights [B, K, 1 or J] or none."""
        self._use(alone=True)
        wide = torch.promote_types(self.dtype, torch.float32)
        gain = torch.as_tensor(gain, dtype=wide, device=self.device).detach()
        both = _Routed.apply(
            self, self._token, iterations, gain, bias, _without_one(self.factors), _without_one(couplings)
        )  # [2, B, J, I]
        return both[0], both[1]


def _without_one(factors: Tensor | None) -> Tensor | None:
    """[B, K, 1] as [B, K]."""
    return factors.squeeze(2) if factors is not None and factors.shape[2] == 1 else factors


class _Routed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, votes: ImplicitVotes, token: Tensor, iterations: int, gain: Tensor, bias: Tensor | None, *given: Any
    ) -> Tensor:
        ctx.backend, ctx.token = votes.backend, token
        with torch.cuda.device_of(token):
            both, ctx.record = ctx.backend.route(RoutingFactors(*given), iterations, gain, bias)
        return both

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        by_factors, by_bias = ctx.backend.route_back(ctx.record, gradients[0])
        return None, ctx.token.new_zeros(()), None, None, by_bias, *by_factors


class _Made(torch.autograd.Function):
    """Where the votes come from. Its output stands for them in autograd's graph; it holds nothing."""

    @staticmethod
    def forward(ctx: Any, votes: ImplicitVotes, *inputs: Tensor) -> Tensor:
        ctx.backend, ctx.pairs, ctx.pulled = votes.backend, votes._pairs, votes._pulled
        with torch.cuda.device_of(inputs[0]):
            votes.backend.prepare()
        return inputs[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor) -> tuple[Any, ...]:
        pairs = list(ctx.pairs.values())
        ctx.pairs.clear()
        pulled, ctx.pulled[:] = list(ctx.pulled), []
        return None, *(pulled or ctx.backend.pull_back(pairs))


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, votes: ImplicitVotes, token: Tensor, weights: Tensor) -> Tensor:
        ctx.backend, ctx.pairs, ctx.pulled, ctx.once = votes.backend, votes._pairs, votes._pulled, votes.once
        ctx.use = next(votes._uses)
        ctx.save_for_backward(token, weights)
        with torch.cuda.device_of(token):
            return votes.backend.sums(weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (gradient,) = gradients  # [B, J, I]
        token, weights = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:  # all that the votes are made of is frozen
            return None, None, ctx.backend.agreements(gradient)
        if ctx.once:
            by_weights, *ctx.pulled[:] = ctx.backend.pull_back([(weights, gradient)], agree=gradient)
            return None, token.new_zeros(()), by_weights
        ctx.pairs[ctx.use] = (weights, gradient)
        return None, token.new_zeros(()), ctx.backend.agreements(gradient) if ctx.needs_input_grad[2] else None


class _Agreement(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, votes: ImplicitVotes, token: Tensor, vectors: Tensor) -> Tensor:
        ctx.backend, ctx.pairs, ctx.use = votes.backend, votes._pairs, next(votes._uses)
        ctx.save_for_backward(token, vectors)
        with torch.cuda.device_of(token):
            return votes.backend.agreements(vectors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (gradient,) = gradients  # [B, K, J]
        token, vectors = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return None, None, ctx.backend.sums(gradient)
        ctx.pairs[ctx.use] = (gradient, vectors)
        return None, token.new_zeros(()), ctx.backend.sums(gradient) if ctx.needs_input_grad[2] else None

"""Votes that are never all in memory: what is summed and compared is computed tile by tile, forward and backward.

Everything that a head does with its votes [B, K, J, I], after the CRF, is one of two things:

- a weighted sum over capsules, s_j = Σ_k c_kj · vote_kj, with weights [B, K, J] (routing's couplings, CORR's weights);
- the agreement of each vote with one vector per class, a_kj = Σ_i vote_kji · v_ji (routing's logits).

Each is the other's gradient: d c_kj is the agreement of the votes with d s_j, and d v_j the sum with weights d a_kj.
And what reaches the votes themselves, c_kj · d s_j and d a_kj · v_j, is a product of two small tensors. So the backward
pass notes these pairs instead of adding up a gradient of the votes' size, and when all have been noted, goes once over
the capsules: each tile's gradient is put together from the pairs, and carried through the CRF to capsules, vote weights
and pairwise weights.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from contextcaps.capsules.guards import require_tensor

__all__ = ["Backend", "ImplicitVotes", "Pair"]

Pair = tuple[Tensor, Tensor]
"""[B, K, J] and [B, J, I]: their product, over [B, K, J, I], is a part of the votes' gradient."""


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


class ImplicitVotes:
    """Votes [B, K, J, I] that can be summed and compared, but not looked at.

    Args:
        backend: what computes them.
        inputs: the tensors that they are made of (capsules, vote weights, pairwise weights), whose gradients
            `backend.pull_back` gives in this order.
        shape: (B, K, J, I).
        once: they will be summed once and nothing else, as by CORR. The backward pass is then a single one.
    """

    def __init__(
        self, backend: Backend, inputs: tuple[Tensor, ...], shape: tuple[int, int, int, int], once: bool = False
    ) -> None:
        self.backend, self.shape, self.once = backend, shape, once
        self.factors: Tensor | None = None
        """[B, K, 1 or J]: what each vote is multiplied with."""
        self._pairs: list[Pair] = []
        self._pulled: list[Tensor] = []  # the inputs' gradients, where the only sum's backward pass gave them already
        self._token: Tensor = _Made.apply(self, *inputs)

    @property
    def dtype(self) -> torch.dtype:
        return self._token.dtype

    @property
    def device(self) -> torch.device:
        return self._token.device

    def scaled(self, factors: Tensor) -> "ImplicitVotes":
        """The votes times factors [B, K, 1 or J]."""
        copy = object.__new__(ImplicitVotes)
        copy.__dict__ = {**self.__dict__, "factors": factors if self.factors is None else factors * self.factors}
        return copy

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ_k weights_kj · vote_kj, [B, K, J] → [B, J, I]."""
        batch, count, classes, _ = self.shape
        require_tensor("weights", weights, "B K J", B=batch, K=count, J=classes)
        weights = weights if self.factors is None else weights * self.factors
        return _Sum.apply(self, self._token, weights)

    def agreement(self, vectors: Tensor) -> Tensor:
        """Σ_i vote_kji · vectors_ji, [B, J, I] → [B, K, J]."""
        batch, _, classes, attributes = self.shape
        require_tensor("vectors", vectors, "B J I", B=batch, J=classes, I=attributes)
        agreements = _Agreement.apply(self, self._token, vectors)  # [B, K, J]
        return agreements if self.factors is None else agreements * self.factors


class _Made(torch.autograd.Function):
    """Where the votes come from. Its output stands for them in autograd's graph; it holds nothing."""

    @staticmethod
    def forward(ctx: Any, votes: ImplicitVotes, *inputs: Tensor) -> Tensor:
        ctx.backend, ctx.pairs, ctx.pulled = votes.backend, votes._pairs, votes._pulled
        votes.backend.prepare()
        return inputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Any, ...]:
        pairs, ctx.pairs[:] = list(ctx.pairs), []
        pulled, ctx.pulled[:] = list(ctx.pulled), []
        return None, *(pulled or ctx.backend.pull_back(pairs))


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, votes: ImplicitVotes, token: Tensor, weights: Tensor) -> Tensor:
        ctx.backend, ctx.pairs, ctx.pulled, ctx.once = votes.backend, votes._pairs, votes._pulled, votes.once
        ctx.save_for_backward(token, weights)
        return votes.backend.sums(weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (gradient,) = gradients  # [B, J, I]
        token, weights = ctx.saved_tensors
        if ctx.once:
            by_weights, *ctx.pulled[:] = ctx.backend.pull_back([(weights, gradient)], agree=gradient)
            return None, token.new_zeros(()), by_weights
        ctx.pairs.append((weights, gradient))
        return None, token.new_zeros(()), ctx.backend.agreements(gradient) if ctx.needs_input_grad[2] else None


class _Agreement(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, votes: ImplicitVotes, token: Tensor, vectors: Tensor) -> Tensor:
        ctx.backend, ctx.pairs = votes.backend, votes._pairs
        ctx.save_for_backward(token, vectors)
        return votes.backend.agreements(vectors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (gradient,) = gradients  # [B, K, J]
        token, vectors = ctx.saved_tensors
        ctx.pairs.append((gradient, vectors))
        return None, token.new_zeros(()), ctx.backend.sums(gradient) if ctx.needs_input_grad[2] else None

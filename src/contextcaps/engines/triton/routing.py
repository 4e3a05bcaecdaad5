"""Launches of the kernels that route and sum compact votes: forward passes, and their vjps in the votes' place."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from contextcaps.engines.operands import Factors
from contextcaps.engines.triton import routing_kernels
from contextcaps.engines.triton.available import INTERPRETED
from contextcaps.engines.triton.votes import CompactVotes, next_power, padded

__all__ = ["Routing"]

_MOST_ROUTED = 1 << 15  # votes of a capsule; beyond, they do not fit into registers
_MOST_COUNTED = (1 << 31) - 1  # votes of a group; beyond, offsets take 64 bits
_SHARED = 88 << 10  # bytes of votes on their way into shared memory; compute capability 8.6 has 99 KiB, some for sums
_BLOCK = 512  # classes at a time, where no softmax needs all of them
_RUN = 8  # capsules at a time, where no sum over capsules is wanted
_HELD = 3840  # numbers that the registers of a warp have room for


class Routing:
    """Routing and sums of compact votes that lie in memory.

    Args:
        source: what the votes were computed from.
        votes: [G, I, R, JP].
    """

    def __init__(self, source: CompactVotes, votes: Tensor) -> None:
        self.votes = votes
        self.batch, self.count, self.classes, self.decision = source.batch, source.count, source.classes, votes.shape[1]
        self.columns, self.parts = source.columns, source.parts
        self._sizes = (self.batch, self.count, source.positions, self.classes)
        self._attributes = {"I": self.decision, "IP": max(2, next_power(self.decision))}
        # True where a group has more votes than 32 bits can count.
        self._wide = self._attributes["IP"] * source.rows * self.columns > _MOST_COUNTED
        pieces = max(1, min(self.count, (8 if INTERPRETED else 2048) // self.batch))
        self._share = -(-self.count // pieces)  # capsules that one program takes
        self._pieces = -(-self.count // self._share)

    @property
    def _in_registers(self) -> bool:
        """True where the votes of a capsule fit into registers, so that an iteration is one pass over them."""
        return self._attributes["IP"] * self.columns <= _MOST_ROUTED

    @functools.cached_property
    def _pass_sizes(self) -> dict[str, int]:
        first, second = self.parts
        # A single warp needs no barriers; it has registers for 2560 votes.
        warps = max(1, min(16, next_power(-(-self._attributes["IP"] * self.columns // 2560))))
        return {**self._attributes, "J1": first, "J2": second, "WIDE": self._wide, "num_warps": warps}

    def _stages(self, most: int, rows: int) -> int:
        """Return the pipeline stages of a pass that reads so many rows at a time: `most`, or as many as fit."""
        return min(most, 1 + _SHARED // (rows * self.columns * self.votes.dtype.itemsize))

    def _in_blocks(self) -> tuple[tuple[int, int, int], dict[str, int]]:
        """Return grid and sizes of a kernel that takes a block of classes."""
        block = min(_BLOCK, next_power(self.columns))
        warps = max(1, min(8, self._attributes["IP"] * block // 1024))
        sizes = {**self._attributes, "JP": self.columns, "JB": block, "WIDE": self._wide}
        sizes |= {"STAGES": 2, "num_warps": warps}
        return (self.batch, self._pieces, -(-self.columns // block)), sizes

    def _empty(self, *first: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return an empty tensor […, B, I, JP]."""
        return self.votes.new_empty(*first, self.batch, self.decision, self.columns, dtype=dtype)

    # Sums

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return Σ_k weights_kj · vote_kj: [B, K, J] → [B, J, I]."""
        return self.as_sums(self._sum_into(self._empty(self._pieces, dtype=torch.float32), weights.contiguous()))

    def as_sums(self, found: Tensor) -> Tensor:
        """Reduce [pieces, B, I, JP] to sums [B, J, I] in the votes' precision."""
        return found.sum(dim=0)[..., : self.classes].transpose(1, 2).to(self.votes.dtype)

    def _sum_into(self, found: Tensor, weights: Tensor) -> Tensor:
        grid, sizes = self._in_blocks()
        routing_kernels.sum_kernel[grid](self.votes, weights, found, *self._sizes, self._share, **sizes)
        return found

    def weighted_sum_vjp(self, weights: Tensor, gradient: Tensor) -> Tensor:
        """Return the weights' gradient [B, K, J] for that of the sums [B, J, I]; write the votes' over the votes."""
        # As the first iteration of a routing whose factors are the weights.
        factors = Factors(weights.contiguous(), None)
        by_sums = padded(gradient.transpose(1, 2), 1, self.votes.dtype)  # [B, I, JP]
        found = self._last(factors, by_sums[None], None, None, 1.0, factors.each(torch.empty_like))
        assert found.votes is not None
        return found.votes

    # Dynamic routing

    def route(
        self, factors: Factors, iterations: int, gain: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Route the votes.

        Returns:
            Decisions and sums [2, B, J, I]; and for the way back, [T, B, I, JP] both, each iteration's sums before gain
            and bias in float32, and the decisions that its couplings followed from, added up.
        """
        factors, bias = factors.each(Tensor.contiguous), None if bias is None else bias.contiguous()
        found, wide = self._empty(self._pieces, dtype=torch.float32), self._empty(dtype=torch.float32)
        both, sums, states = self.empty_results(iterations, bias)
        for turn in range(iterations):
            self._pass(found, factors, states[turn], turn)
            grid, sizes = self._deciding(bias)
            routing_kernels.decide_kernel[grid](
                found, gain, gain if bias is None else bias, sums[turn], wide, states[min(turn + 1, iterations - 1)],
                both, self.batch, self.classes, self._pieces, FIRST=turn == 0, LAST=turn + 1 == iterations, **sizes,
            )  # fmt: skip
        return both, sums, states

    def empty_results(self, iterations: int, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return tensors like those of `route`, not computed."""
        kind = self.votes.dtype if bias is None else torch.promote_types(self.votes.dtype, bias.dtype)
        both = self.votes.new_empty(2, self.batch, self.classes, self.decision, dtype=kind)
        return both, self._empty(iterations, dtype=torch.float32), self._empty(iterations)

    def _pass(self, found: Tensor, factors: Factors, state: Tensor, turn: int) -> None:
        """Write Σ_k w_kj · vote_kj with a state's couplings, for shares of capsules, into found [pieces, B, I, JP]."""
        if self._in_registers:
            routing_kernels.pass_kernel[(self.batch, self._pieces)](
                self.votes, *_or(self.votes, factors), state, found, *self._sizes, self._share,
                self._even(factors), FIRST=turn == 0, STAGES=self._stages(3, self._attributes["IP"]),
                **self._pass_sizes, **_kinds(factors),
            )  # fmt: skip
            return
        of_votes, initial = _per_class(factors)
        if turn:
            couplings = torch.softmax(of_votes * self._agreement(state), dim=2)  # [B, K, J]
        else:
            shape = (self.batch, self.count, self.classes)
            couplings = found.new_full(shape, self._even(factors))  # [B, K, J]
        self._sum_into(found, couplings.mul_(of_votes).mul_(initial).to(self.votes.dtype))

    def _deciding(self, bias: Tensor | None) -> tuple[tuple[int, int], dict[str, Any]]:
        block = 64
        sizes = {**self._attributes, "JP": self.columns, "BLOCK": block, "BIAS": bias is not None, "num_warps": 4}
        return (self.batch, -(-self.columns // block)), sizes

    def route_vjp(
        self, factors: Factors, gain: Tensor, bias: Tensor | None, sums: Tensor, states: Tensor, gradient: Tensor
    ) -> tuple[Factors, Tensor | None]:
        """Return the gradients of factors and bias, for those of decisions and sums [2, B, J, I].

        The votes' gradient is written over the votes.
        """
        iterations, votes = len(sums), self.votes
        factors, bias = factors.each(Tensor.contiguous), None if bias is None else bias.contiguous()
        found, wide = self._empty(self._pieces, dtype=torch.float32), self._empty(dtype=torch.float32)
        later = self._empty(dtype=torch.float32)  # gradients of later states, added up
        gradients = self._empty(iterations)  # of each iteration's sums
        weights = votes.new_empty(iterations - 1, 2, self.batch, self.count, self.columns)  # w and f · dl
        by_factors = factors.each(torch.empty_like)
        gradient = gradient.contiguous()
        for turn in reversed(range(iterations)):
            grid, sizes = self._deciding(bias)
            routing_kernels.undecide_kernel[grid](
                found, gain, gain if bias is None else bias, sums[turn], later, gradients[turn], wide, gradient,
                self.batch, self.classes, self._pieces, LAST=turn + 1 == iterations, **sizes,
            )  # fmt: skip
            if turn:
                add = turn + 1 < iterations
                self._pass_vjp(found, factors, states[turn], gradients[turn], weights[turn - 1], by_factors, add)
        by_factors = self._last(factors, gradients, states, weights, self._even(factors), by_factors)
        return by_factors, None if bias is None else self.as_bias(wide.sum(dim=0)).to(bias.dtype)

    def as_bias(self, gradient: Tensor) -> Tensor:
        """Return [I, JP] as [J, I], a view."""
        return gradient[:, : self.classes].t()

    def _pass_vjp(
        self, found: Tensor, factors: Factors, state: Tensor, by_sums: Tensor, weights: Tensor, by_factors: Factors,
        add: bool,
    ) -> None:  # fmt: skip
        """Write the state's gradient, for shares of capsules, into found; and w and f · dl into weights [2, B, K, JP].

        The gradients of the factors are written too, or added to what is there.
        """
        if self._in_registers:
            routing_kernels.back_kernel[(self.batch, self._pieces)](
                self.votes, *_or(self.votes, factors), state, by_sums, found, *weights,
                *_or(self.votes, by_factors), *self._sizes, self._share, ADD=add,
                STAGES=self._stages(2, 3 * self._attributes["IP"]), **self._pass_sizes, **_kinds(factors),
            )  # fmt: skip
            return
        of_votes, initial = _per_class(factors)
        agreement = self._agreement(state)  # [B, K, J]
        couplings = torch.softmax(of_votes * agreement, dim=2)  # [B, K, J]
        reached = self._agreement(by_sums)  # [B, K, J], the gradient of a vote's weight
        by_couplings = reached * (of_votes * initial)  # [B, K, J]
        inner = (couplings * by_couplings).sum(dim=2, keepdim=True)  # [B, K, 1]
        by_logits = by_couplings.sub_(inner).mul_(couplings)  # [B, K, J]
        if by_factors.votes is not None:
            part = (reached * couplings).mul_(initial).addcmul_(by_logits, agreement)  # [B, K, J]
            _accumulate(by_factors.votes, part, add)
        if by_factors.couplings is not None:
            _accumulate(by_factors.couplings, reached.mul_(couplings).mul_(of_votes), add)
        weights[0, ..., : self.classes] = couplings.mul_(of_votes).mul_(initial)
        weights[1, ..., : self.classes] = by_logits.mul_(of_votes)
        weights[..., self.classes :] = 0
        self._sum_into(found, weights[1, ..., : self.classes].contiguous())

    def _agreement(self, vectors: Tensor) -> Tensor:
        """Return Σ_i vote_kji · vectors_ij in float32: [B, I, JP] → [B, K, J]."""
        grid, sizes = self._in_blocks()
        found = self.votes.new_empty(self.batch, self.count, self.classes, dtype=torch.float32)
        routing_kernels.agreement_kernel[grid](self.votes, vectors, found, *self._sizes, self._share, **sizes)
        return found

    def _last(
        self,
        factors: Factors,
        gradients: Tensor,
        states: Tensor | None,
        weights: Tensor | None,
        even: float,
        by_factors: Factors,
    ) -> Factors:
        """Go back through the first iteration, and write the votes' gradient over the votes."""
        votes, (first, second) = self.votes, self.parts
        turns, run, kinds = len(gradients), _RUN, _kinds(factors)
        # What stays in registers of a capsule's votes: weights, the first iteration's agreement, factors of their own.
        held = 2 * min(turns, 3) - 1 + any(kinds.values()) + sum(kind == 2 for kind in kinds.values())
        while run > 1 and run * held * self.columns > 8 * _HELD:
            run //= 2
        warps = max(1, min(16, next_power(-(-run * held * self.columns // _HELD))))
        read = run * (1 + 2 * max(0, turns - 3)) + 2 * turns - 1
        routing_kernels.last_kernel[(self.batch, -(-self.count // run))](
            votes, *_or(votes, factors), votes if states is None else states, gradients,
            votes if weights is None else weights, *_or(votes, by_factors), *self._sizes, even, T=turns,
            I=self.decision, J1=first, J2=second, RUN=run, WIDE=self._wide, STAGES=self._stages(3, read),
            SPARSE=run * second < 32 * warps, num_warps=warps, **kinds,
        )  # fmt: skip
        return by_factors

    def _even(self, factors: Factors) -> float:
        """Return the coupling in the first iteration."""
        return 1 / self.classes if factors.couplings is None else 1.0


def _or(instead: Tensor, factors: Factors) -> Iterator[Tensor]:
    """Return the factors for a kernel, with another tensor in the place of those that are not given."""
    return (instead if each is None else each for each in factors)


def _kinds(factors: Factors) -> dict[str, int]:
    """Return a kernel's flags: 0 for none, 1 for [B, K], 2 for [B, K, J]."""
    votes, couplings = (0 if each is None else each.ndim - 1 for each in factors)
    return {"F": votes, "M": couplings}


def _per_class(factors: Factors) -> tuple[Tensor | float, Tensor | float]:
    """Return factors in float32 that broadcast over [B, K, J], or 1."""
    votes, couplings = (
        1.0 if each is None else (each.unsqueeze(2) if each.ndim == 2 else each).float() for each in factors
    )
    return votes, couplings


def _accumulate(total: Tensor, part: Tensor, add: bool) -> None:
    """Write a gradient of factors [B, K] or [B, K, J], or add to it."""
    part = part.sum(dim=2) if total.ndim == 2 else part
    total.copy_(part + total if add else part)

"""Compact votes and the kernels that use them: sums, agreements and dynamic routing."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contextcaps.capsules.fused import routing_kernels
from contextcaps.capsules.fused.availability import interpreted
from contextcaps.capsules.fused.compact_votes import CompactVotes, next_power
from contextcaps.capsules.fused.votes import Pair, RoutingFactors

__all__ = ["FusedVotes"]

_MOST_ROUTED = 1 << 15  # votes of a capsule; beyond, they do not fit into registers
_MOST_COUNTED = (1 << 31) - 1  # votes of a group; beyond, offsets take 64 bits
_SHARED = 88 << 10  # bytes of votes on their way into shared memory; compute capability 8.6 has 99 KiB, some for sums
_BLOCK = 512  # classes at a time, where no softmax needs all of them
_RUN = 8  # capsules at a time, where no sum over capsules is wanted
_HELD = 3840  # numbers that the registers of a warp have room for


class _Record(NamedTuple):
    """What the way back through a routing needs, [T, B, I, JP] both, with what it was given."""

    sums: Tensor
    """Each iteration's, before gain and bias, in float32."""
    states: Tensor
    """The decisions that each iteration's couplings followed from, added up, in the votes' precision."""
    factors: RoutingFactors
    gain: Tensor
    bias: Tensor | None


class FusedVotes(CompactVotes):
    """A `RoutingBackend` on Triton; the arguments are those of `CompactVotes`."""

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        return self.batch, self.count, self.positions, self.classes

    @property
    def _shares(self) -> tuple[int, int]:
        """Into how many parts the capsules are divided, and how many capsules each has."""
        parts = max(1, min(self.count, (8 if interpreted() else 2048) // self.batch))
        share = -(-self.count // parts)
        return -(-self.count // share), share

    @property
    def _attributes(self) -> dict[str, int]:
        return {"I": self.decision, "IP": max(2, next_power(self.decision))}

    @property
    def _wide(self) -> bool:
        """Whether a group has more votes than 32 bits can count."""
        return self._attributes["IP"] * self.rows * self.columns > _MOST_COUNTED

    @property
    def _routing_sizes(self) -> dict[str, int]:
        first, second = self.parts
        # A single warp needs no barriers; it has registers for 2560 votes.
        warps = max(1, min(16, next_power(-(-self._attributes["IP"] * self.columns // 2560))))
        sizes = {**self._attributes, "J1": first, "J2": second, "WIDE": self._wide}
        return {**sizes, "num_warps": warps}

    def _stages(self, most: int, rows: int) -> int:
        """Into how many stages a pass that reads so many rows at a time is divided: `most`, or as many as fit."""
        return min(most, 1 + _SHARED // (rows * self.columns * self.dtype.itemsize))

    def _in_blocks(self) -> tuple[tuple[int, int, int], dict[str, int]]:
        """Grid and sizes of a kernel that takes a block of classes."""
        block = min(_BLOCK, next_power(self.columns))
        warps = max(1, min(8, self._attributes["IP"] * block // 1024))
        sizes = {**self._attributes, "JP": self.columns, "JB": block, "WIDE": self._wide}
        sizes |= {"STAGES": 2, "num_warps": warps}
        return (self.batch, self._shares[0], -(-self.columns // block)), sizes

    def _empty(self, *first: int, dtype: torch.dtype | None = None) -> Tensor:
        """[…, B, I, JP]."""
        shape = (*first, self.batch, self.decision, self.columns)
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.capsules.device)

    def _by_attribute(self, vectors: Tensor) -> Tensor:
        """[…, B, J, I] as […, B, I, JP]."""
        return self._padded(vectors.detach().transpose(-1, -2), 1)

    def sums(self, weights: Tensor) -> Tensor:
        votes, (grid, sizes) = self.made(), self._in_blocks()
        found = self._empty(grid[1], dtype=torch.float32)  # [parts, B, I, JP]
        routing_kernels.sum_kernel[grid](
            votes, weights.detach().contiguous(), found, *self._sizes, self._shares[1], **sizes
        )
        return found.sum(dim=0)[..., : self.classes].transpose(1, 2).to(self.dtype)

    def agreements(self, vectors: Tensor) -> Tensor:
        votes, (grid, sizes) = self.made(), self._in_blocks()
        found = votes.new_empty(self.batch, self.count, self.classes)  # [B, K, J]
        routing_kernels.agreement_kernel[grid](
            votes, self._by_attribute(vectors), found, *self._sizes, self._shares[1], **sizes
        )
        return found

    def pull_back(self, pairs: list[Pair], agree: Tensor | None = None) -> tuple[Tensor, ...]:
        if agree is not None and len(pairs) == 1 and self.routes:
            # A sum and nothing else: as the first iteration of a routing whose factors are the weights.
            weights, gradient = pairs[0]
            factors = RoutingFactors(weights.detach().contiguous(), None)
            found = self._last(factors, self._by_attribute(gradient)[None], None, None, 1.0, _empty_like(factors))
            assert found.votes is not None
            return found.votes, *self.unmake()
        agreements = () if agree is None else (self.agreements(agree),)
        if pairs:
            self._combine(pairs)
        return *agreements, *self.unmake()

    def _combine(self, pairs: list[Pair]) -> None:
        """The votes' gradient Σ_n weights · vectors, in the votes' place."""
        weights = torch.stack([weights.detach().to(self.dtype) for weights, _ in pairs])  # [n, B, K, J]
        vectors = self._by_attribute(torch.stack([vectors.detach().float() for _, vectors in pairs]))  # [n, B, I, JP]
        block = min(256, next_power(self.columns))
        grid = (self.batch, -(-self.count // _RUN), -(-self.columns // block))
        routing_kernels.pairs_kernel[grid](
            weights, vectors, self.made(), *self._sizes, N=len(pairs), I=self.decision, JP=self.columns, JB=block,
            RUN=_RUN, WIDE=self._wide, num_warps=4,
        )  # fmt: skip
        self.overwritten = True

    # Dynamic routing

    @property
    def routes(self) -> bool:
        """Whether the votes of a capsule fit into registers, so that an iteration is one pass over them."""
        return self._attributes["IP"] * self.columns <= _MOST_ROUTED

    def route(
        self, factors: RoutingFactors, iterations: int, gain: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, _Record]:
        votes, (parts, share) = self.made(), self._shares
        factors = RoutingFactors(*(None if each is None else each.detach().contiguous() for each in factors))
        bias = None if bias is None else bias.detach().contiguous()
        found = self._empty(parts, dtype=torch.float32)
        sums, wide = self._empty(iterations, dtype=torch.float32), self._empty(dtype=torch.float32)
        states = self._empty(iterations)
        kind = votes.dtype if bias is None else torch.promote_types(votes.dtype, bias.dtype)
        both = votes.new_empty(2, self.batch, self.classes, self.decision, dtype=kind)
        for turn in range(iterations):
            routing_kernels.pass_kernel[(self.batch, parts)](
                votes, *_or(votes, factors), states[turn], found, *self._sizes, share,
                self._even(factors), FIRST=turn == 0, STAGES=self._stages(3, self._attributes["IP"]),
                **self._routing_sizes, **_kinds(factors),
            )  # fmt: skip
            grid, sizes = self._deciding(bias)
            routing_kernels.decide_kernel[grid](
                found, gain, gain if bias is None else bias, sums[turn], wide, states[min(turn + 1, iterations - 1)],
                both, self.batch, self.classes, parts, FIRST=turn == 0, LAST=turn + 1 == iterations, **sizes,
            )  # fmt: skip
        return both, _Record(sums, states, factors, gain, bias)

    def _deciding(self, bias: Tensor | None) -> tuple[tuple[int, int], dict[str, Any]]:
        block = 64
        sizes = {**self._attributes, "JP": self.columns, "BLOCK": block, "BIAS": bias is not None, "num_warps": 4}
        return (self.batch, -(-self.columns // block)), sizes

    def route_back(self, record: _Record, gradient: Tensor) -> tuple[RoutingFactors, Tensor | None]:
        votes, (parts, share) = self.made(), self._shares
        sums, states, factors, gain, bias = record
        iterations = len(sums)
        found, wide = self._empty(parts, dtype=torch.float32), self._empty(dtype=torch.float32)
        later = self._empty(dtype=torch.float32)  # gradients of later states, added up
        gradients = self._empty(iterations)  # of each iteration's sums
        weights = votes.new_empty(iterations - 1, 2, self.batch, self.count, self.columns)  # w and f · dl
        by_factors = _empty_like(factors)
        gradient = gradient.contiguous()
        for turn in reversed(range(iterations)):
            grid, sizes = self._deciding(bias)
            routing_kernels.undecide_kernel[grid](
                found, gain, gain if bias is None else bias, sums[turn], later, gradients[turn], wide, gradient,
                self.batch, self.classes, parts, LAST=turn + 1 == iterations, **sizes,
            )  # fmt: skip
            if turn:
                routing_kernels.back_kernel[(self.batch, parts)](
                    votes, *_or(votes, factors), states[turn], gradients[turn], found, *weights[turn - 1],
                    *_or(votes, by_factors), *self._sizes, share, ADD=turn + 1 < iterations,
                    STAGES=self._stages(2, 3 * self._attributes["IP"]), **self._routing_sizes, **_kinds(factors),
                )  # fmt: skip
        by_factors = self._last(factors, gradients, states, weights, self._even(factors), by_factors)
        by_bias = None if bias is None else wide.sum(dim=0)[:, : self.classes].t().to(bias.dtype)  # [J, I]
        return by_factors, by_bias

    def _last(
        self,
        factors: RoutingFactors,
        gradients: Tensor,
        states: Tensor | None,
        weights: Tensor | None,
        even: float,
        by_factors: RoutingFactors,
    ) -> RoutingFactors:
        """Back through the first iteration; the votes' gradient takes their place."""
        votes, (first, second) = self.made(), self.parts
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
        self.overwritten = True
        return by_factors

    def _even(self, factors: RoutingFactors) -> float:
        """The coupling in the first iteration."""
        return 1 / self.classes if factors.couplings is None else 1.0


def _or(instead: Tensor, factors: RoutingFactors) -> Iterator[Tensor]:
    """The factors, and something that is a tensor for those that there are not."""
    return (instead if each is None else each for each in factors)


def _empty_like(factors: RoutingFactors) -> RoutingFactors:
    return RoutingFactors(*(None if each is None else torch.empty_like(each) for each in factors))


def _kinds(factors: RoutingFactors) -> dict[str, int]:
    """Which factors there are: none, [B, K] or [B, K, J]."""
    votes, couplings = (0 if each is None else each.ndim - 1 for each in factors)
    return {"F": votes, "M": couplings}

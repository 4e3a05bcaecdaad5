"""The votes of a few capsules at a time, in plain PyTorch: for CPUs, and for GPUs without Triton.

Without a CRF nothing is kept: a vote costs A multiplications, less than fetching it from memory. With a CRF the
corrected votes are computed once and kept, [K, B, J, I], unless they are used only once; and the CRF is computed a
second time, tile by tile, in the backward pass. The many tensors of the votes' size that its iterations leave behind
for autograd exist for one tile at a time.

Dynamic routing is one pass over the tiles for each iteration: its logits are the agreement of a vote with the sum of
all earlier decisions, and need not be kept. Backward likewise; and a last pass computes all couplings anew.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from contextcaps.capsules.fused.votes import Pair, RoutingFactors
from contextcaps.capsules.squash import squash

__all__ = ["LeanVotes"]

TILE_ON_CPU, TILE_ON_GPU = 1 << 19, 1 << 26
"""Votes in a tile: 2 MiB in float32, what a core's cache holds; and enough to keep a GPU busy."""


class _Record(NamedTuple):
    """What the way back through a routing needs: each iteration's sums and states, [B, J, I]."""

    sums: list[Tensor]
    states: list[Tensor]
    factors: RoutingFactors
    gain: Tensor
    has_bias: bool


class _Gradients(NamedTuple):
    """Where the gradients of the inputs are put together."""

    capsules: Tensor
    """[K, B, A]."""
    weight: Tensor
    """[K or D, A, J, I]."""
    pairwise: tuple[Tensor, ...]


class LeanVotes:
    """A `RoutingBackend` in plain PyTorch.

    Args:
        capsules: [B, K, A].
        weight: [K, A, J, I], or [D, A, J, I] shared by the K/D positions of a type.
        correct: what the CRF does to votes [k, B, J, I]; None for none.
        pairwise: the tensors that `correct` depends on, besides the votes.
        keep: keep the corrected votes, for several passes over them.
        tile_elements: votes to have in memory at a time; by default what suits the device.
    """

    def __init__(
        self,
        capsules: Tensor,
        weight: Tensor,
        correct: Callable[..., Tensor] | None = None,
        pairwise: tuple[Tensor, ...] = (),
        keep: bool = True,
        tile_elements: int | None = None,
    ) -> None:
        batch, count, _ = capsules.shape
        _, _, classes, attributes = weight.shape
        self.capsules = capsules.detach().transpose(0, 1).contiguous()  # [K, B, A]
        self.weight, self.correct, self.pairwise = weight.detach(), correct, tuple(each.detach() for each in pairwise)
        self.shape = (batch, count, classes, attributes)
        self.positions = count // len(weight)  # that share a weight
        self.on_cpu = capsules.device.type == "cpu"
        wanted = (TILE_ON_CPU if self.on_cpu else TILE_ON_GPU) if tile_elements is None else tile_elements
        self.tile = max(1, wanted // (batch * classes * attributes))
        if self.positions > 1:  # a tile has positions of one type
            self.tile = min(self.tile, self.positions)
        self.keep = keep and correct is not None
        self.kept: Tensor | None = None
        self._given_back: tuple[Tensor, ...] | None = None  # the inputs' gradients, if the routing gave them

    def prepare(self) -> None:
        if not self.keep:
            return
        batch, count, classes, attributes = self.shape
        self.kept = self.capsules.new_empty(count, batch, classes, attributes)  # [K, B, J, I]
        for tile in self._tiles():
            self.kept[tile] = self._computed(tile)

    def _tiles(self) -> Iterator[slice]:
        count, run = self.shape[1], self.positions if self.positions > 1 else self.shape[1]
        for first in range(0, count, run):
            for start in range(first, first + run, self.tile):
                yield slice(start, min(start + self.tile, first + run))

    def _weight(self, tile: slice) -> Tensor:
        """[k or 1, A, J, I]."""
        if self.positions == 1:
            return self.weight[tile]
        type_of = tile.start // self.positions
        return self.weight[type_of : type_of + 1]

    def _cast(self, capsules: Tensor, weight: Tensor) -> Tensor:
        """Votes [k, B, J, I] of capsules [k, B, A]."""
        matrices = weight.flatten(2)  # [k or 1, A, J·I]
        return torch.matmul(capsules, matrices).unflatten(2, weight.shape[2:])

    def _votes(self, tile: slice) -> Tensor:
        if self.keep and self.kept is None:
            self.prepare()  # a second backward pass: what the first one needed is gone
        return self._computed(tile) if self.kept is None else self.kept[tile]

    def _computed(self, tile: slice) -> Tensor:
        votes = self._cast(self.capsules[tile], self._weight(tile))
        return votes if self.correct is None else self.correct(votes, *self.pairwise)

    def sums(self, weights: Tensor) -> Tensor:
        batch, _, classes, attributes = self.shape
        by_capsule = weights.detach().transpose(0, 1).to(self.capsules.dtype)  # [K, B, J]
        total = self.capsules.new_zeros(batch, classes, attributes, dtype=self._wide)  # [B, J, I]
        for tile in self._tiles():
            self._add_sum(total, self._votes(tile), by_capsule[tile].to(self._wide))
        return total.to(self.capsules.dtype)

    def agreements(self, vectors: Tensor) -> Tensor:
        batch, count, classes, _ = self.shape
        vectors = vectors.detach().to(self.capsules.dtype)  # [B, J, I]
        found = self.capsules.new_empty(count, batch, classes)  # [K, B, J]
        for tile in self._tiles():
            torch.sum(self._votes(tile) * vectors, dim=3, out=found[tile])
        return found.transpose(0, 1)  # [B, K, J]

    def pull_back(self, pairs: list[Pair], agree: Tensor | None = None) -> tuple[Tensor, ...]:
        if self._given_back is not None:
            given, self._given_back = self._given_back, None
            return given
        dtype = self.capsules.dtype
        sides = [(weights.transpose(0, 1).to(dtype), vectors.to(dtype)) for weights, vectors in pairs]
        found = self._no_gradients()
        agreements = self.capsules.new_empty(self.shape[1], self.shape[0], self.shape[2])  # [K, B, J]
        for tile in self._tiles():
            gradient = self._zeros(tile)  # [k, B, J, I]
            for weights, vectors in sides:
                gradient.addcmul_(weights[tile].unsqueeze(-1), vectors)
            votes = self._give_back(tile, gradient, found, agree is not None)
            if agree is not None and votes is not None:
                torch.sum(votes * agree.to(dtype), dim=3, out=agreements[tile])
        given = self._finished(found)
        return given if agree is None else (agreements.transpose(0, 1), *given)

    def _zeros(self, tile: slice) -> Tensor:
        """[k, B, J, I]."""
        batch, _, classes, attributes = self.shape
        return self.capsules.new_zeros(tile.stop - tile.start, batch, classes, attributes)

    def _no_gradients(self) -> _Gradients:
        # What many tiles add to is float32: in half precision it would stop growing.
        pairwise = tuple(torch.zeros_like(each, dtype=self._wide) for each in self.pairwise)
        weight = torch.zeros_like(self.weight, dtype=None if self.positions == 1 else self._wide)
        return _Gradients(torch.empty_like(self.capsules), weight, pairwise)

    def _give_back(self, tile: slice, gradient: Tensor, found: _Gradients, need_votes: bool = False) -> Tensor | None:
        """Carry a tile's gradient [k, B, J, I] to the inputs; and the tile's votes, after the CRF, if need be."""
        given, matrices = self.capsules[tile], self._weight(tile)
        votes = self._cast(given, matrices) if self.correct is not None or need_votes else None
        if self.correct is not None and votes is not None:
            votes, gradient = self._through_the_crf(votes, gradient, found.pairwise)
        flat = gradient.flatten(2)  # [k, B, J·I]
        found.capsules[tile] = torch.matmul(flat, matrices.flatten(2).transpose(1, 2))  # [k, B, A]
        by_weight = torch.matmul(given.transpose(1, 2), flat).unflatten(2, self.shape[2:])  # [k, A, J, I]
        if self.positions == 1:
            found.weight[tile] = by_weight
        else:
            found.weight[tile.start // self.positions] += by_weight.sum(dim=0)
        return votes

    def _finished(self, found: _Gradients) -> tuple[Tensor, ...]:
        self.kept = None
        dtype = self.capsules.dtype
        return found.capsules.transpose(0, 1), found.weight.to(dtype), *(each.to(dtype) for each in found.pairwise)

    # Dynamic routing

    routes = True
    """Whether an iteration of the routing is one pass."""

    def route(
        self, factors: RoutingFactors, iterations: int, gain: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, _Record]:
        factors = RoutingFactors(*(None if each is None else each.detach() for each in factors))
        sums: list[Tensor] = []
        states: list[Tensor] = []
        state = self.capsules.new_zeros(self.shape[0], *self.shape[2:], dtype=self._wide)  # [B, J, I]
        for turn in range(iterations):
            states.append(state)
            raw = torch.zeros_like(state)
            for tile in self._tiles():
                votes = self._votes(tile)  # [k, B, J, I]
                couplings = self._couplings(votes, tile, factors, state, turn)
                self._add_sum(raw, votes, couplings * self._factor(factors.votes, tile))
            sums.append(gain * raw if bias is None else gain * raw + bias.detach())
            decisions = squash(sums[-1])  # [B, J, I]
            state = state + decisions
        kind = self.capsules.dtype if bias is None else torch.promote_types(self.capsules.dtype, bias.dtype)
        both = torch.stack([decisions, sums[-1]]).to(kind)  # [2, B, J, I]
        return both, _Record(sums, states, factors, gain, bias is not None)

    def route_back(self, record: _Record, gradient: Tensor) -> tuple[RoutingFactors, Tensor | None]:
        sums, states, factors, gain, has_bias = record
        last = len(sums) - 1
        later = torch.zeros_like(sums[0])  # gradients of later states, added up
        gradients = [torch.empty_like(later)] * len(sums)  # of each iteration's raw sums
        by_bias = torch.zeros_like(later[0])  # [J, I]
        for turn in range(last, -1, -1):
            before = sums[turn].detach().requires_grad_()  # [B, J, I]
            with torch.enable_grad():
                after = squash(before)
            reached = (gradient[0] if turn == last else later).to(after)
            (by_sums,) = torch.autograd.grad(after, before, reached)
            by_sums = by_sums + gradient[1] if turn == last else by_sums
            by_bias += by_sums.sum(dim=0)
            gradients[turn] = gain * by_sums
            if turn:
                for tile in self._tiles():
                    votes = self._votes(tile)  # [k, B, J, I]
                    _, by_logits, _ = self._back(votes, tile, factors, states[turn], gradients[turn], turn)
                    self._add_sum(later, votes, by_logits)
        by_factors = self._last_pass(factors, states, gradients)
        return by_factors, by_bias if has_bias else None

    @property
    def _wide(self) -> torch.dtype:
        return torch.promote_types(self.capsules.dtype, torch.float32)

    def _factor(self, factor: Tensor | None, tile: slice) -> Tensor | float:
        """[k, B, J or 1], or 1."""
        if factor is None:
            return 1.0
        by_capsule = factor[:, tile].transpose(0, 1).to(self._wide)  # [k, B] or [k, B, J]
        return by_capsule.unsqueeze(2) if factor.ndim == 2 else by_capsule

    def _add_sum(self, total: Tensor, votes: Tensor, weights: Tensor) -> None:
        """Add Σ_k weights_kj · vote_kj to total [B, J, I], for votes [k, B, J, I] and weights [k, B, J]."""
        if not self.on_cpu:
            total += torch.einsum("kbj,kbji->bji", weights.to(votes.dtype), votes)
            return
        for each, factor in zip(votes, weights, strict=True):  # one capsule after the other stays in the cache
            total.addcmul_(each.to(total.dtype), factor.unsqueeze(-1))

    def _agreement(self, votes: Tensor, vectors: Tensor) -> Tensor:
        """[k, B, J], of votes [k, B, J, I] with vectors [B, J, I]."""
        return torch.sum(votes * vectors.to(votes.dtype), dim=3).to(self._wide)

    def _couplings(self, votes: Tensor, tile: slice, factors: RoutingFactors, state: Tensor, turn: int) -> Tensor:
        """Couplings, times the initial weights, [k, B, J]."""
        initial = self._factor(factors.couplings, tile)
        if turn == 0:
            even = 1 / self.shape[2] if factors.couplings is None else 1.0
            return torch.full(votes.shape[:3], even, dtype=self._wide, device=votes.device) * initial
        agreement = self._agreement(votes, state)  # [k, B, J]
        return torch.softmax(self._factor(factors.votes, tile) * agreement, dim=2) * initial

    def _back(
        self, votes: Tensor, tile: slice, factors: RoutingFactors, state: Tensor, gradient: Tensor, turn: int
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """A vote's weight in the sum and in the agreement's gradient, and the factors' gradients; all [k, B, J]."""
        of_votes, initial = self._factor(factors.votes, tile), self._factor(factors.couplings, tile)
        reached = self._agreement(votes, gradient)  # [k, B, J], of the weight in the sum
        if turn == 0:
            weighed = self._couplings(votes, tile, factors, state, turn)
            plain = weighed if factors.couplings is None else torch.ones_like(weighed)
            by_factors = (reached * weighed, reached * plain * of_votes)
            return weighed * of_votes, torch.zeros_like(weighed), by_factors
        agreement = self._agreement(votes, state)  # [k, B, J]
        couplings = torch.softmax(of_votes * agreement, dim=2)  # [k, B, J]
        by_couplings = reached * of_votes * initial  # [k, B, J]
        by_logits = couplings * (by_couplings - (couplings * by_couplings).sum(dim=2, keepdim=True))  # [k, B, J]
        by_votes = reached * couplings * initial + by_logits * agreement  # [k, B, J]
        by_factors = (by_votes, reached * couplings * of_votes)
        return couplings * of_votes * initial, of_votes * by_logits, by_factors

    def _last_pass(self, factors: RoutingFactors, states: list[Tensor], gradients: list[Tensor]) -> RoutingFactors:
        """The factors' gradients; and those of the inputs, kept for `pull_back`."""
        found = self._no_gradients()
        by_factors = RoutingFactors(*(None if each is None else torch.zeros_like(each) for each in factors))
        dtype = self.capsules.dtype
        for tile in self._tiles():
            votes, gradient = self._votes(tile), self._zeros(tile)  # [k, B, J, I]
            for turn, (state, reached) in enumerate(zip(states, gradients, strict=True)):
                weights, by_logits, parts = self._back(votes, tile, factors, state, reached, turn)
                gradient.addcmul_(weights.unsqueeze(-1).to(dtype), reached.to(dtype))
                if turn:
                    gradient.addcmul_(by_logits.unsqueeze(-1).to(dtype), state.to(dtype))
                for total, part in zip(by_factors, parts, strict=True):
                    if total is not None:
                        part = part.sum(dim=2) if total.ndim == 2 else part  # [k, B] or [k, B, J]
                        total[:, tile] += part.transpose(0, 1).to(total.dtype)
            self._give_back(tile, gradient, found)
        self._given_back = self._finished(found)
        return by_factors

    def _through_the_crf(self, votes: Tensor, gradient: Tensor, pairwise: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Votes after the CRF, and the gradient before it, [k, B, J, I]; the pairwise weights' gradient is added up."""
        assert self.correct is not None
        votes = votes.requires_grad_()  # [k, B, J, I]
        leaves = tuple(each.detach().requires_grad_() for each in self.pairwise)
        with torch.enable_grad():
            corrected = self.correct(votes, *leaves)
        before, *others = torch.autograd.grad(corrected, (votes, *leaves), gradient, allow_unused=True)
        for total, each in zip(pairwise, others, strict=True):
            if each is not None:  # without iterations there are no messages
                total += each
        return corrected.detach(), before

"""The votes of a few capsules at a time, in plain PyTorch: for CPUs, and for GPUs without Triton.

Without a CRF nothing is kept: a vote costs A multiplications, less than fetching it from memory. With a CRF the
corrected votes are computed once and kept, [K, B, J, I], unless they are used only once; and the CRF is computed a
second time, tile by tile, in the backward pass. The many tensors of the votes' size that its iterations leave behind
for autograd exist for one tile at a time.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from contextcaps.capsules.fused.votes import Pair

__all__ = ["LeanVotes"]

TILE_ON_CPU, TILE_ON_GPU = 1 << 19, 1 << 26
"""Votes in a tile: 2 MiB in float32, what a core's cache holds; and enough to keep a GPU busy."""


class LeanVotes:
    """A `Backend` in plain PyTorch.

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
        wide = torch.promote_types(self.capsules.dtype, torch.float32)
        total = self.capsules.new_zeros(batch, classes, attributes, dtype=wide)  # [B, J, I]
        for tile in self._tiles():
            votes, factors = self._votes(tile), by_capsule[tile]  # [k, B, J, I], [k, B, J]
            if self.on_cpu:  # one capsule after the other stays in the cache
                for each, factor in zip(votes, factors, strict=True):
                    total.addcmul_(each.to(wide), factor.unsqueeze(-1).to(wide))
            else:
                total += torch.einsum("kbj,kbji->bji", factors, votes)
        return total.to(self.capsules.dtype)

    def agreements(self, vectors: Tensor) -> Tensor:
        batch, count, classes, _ = self.shape
        vectors = vectors.detach().to(self.capsules.dtype)  # [B, J, I]
        found = self.capsules.new_empty(count, batch, classes)  # [K, B, J]
        for tile in self._tiles():
            torch.sum(self._votes(tile) * vectors, dim=3, out=found[tile])
        return found.transpose(0, 1)  # [B, K, J]

    def pull_back(self, pairs: list[Pair], agree: Tensor | None = None) -> tuple[Tensor, ...]:
        dtype = self.capsules.dtype
        sides = [(weights.transpose(0, 1).to(dtype), vectors.to(dtype)) for weights, vectors in pairs]
        capsules = torch.empty_like(self.capsules)  # [K, B, A]
        weight = torch.zeros_like(self.weight)  # [K or D, A, J, I]
        pairwise = tuple(torch.zeros_like(each) for each in self.pairwise)
        agreements = self.capsules.new_empty(self.shape[1], self.shape[0], self.shape[2])  # [K, B, J]
        for tile in self._tiles():
            given, matrices = self.capsules[tile], self._weight(tile)
            gradient = self.capsules.new_zeros(len(given), *self.shape[:1], *self.shape[2:])  # [k, B, J, I]
            for weights, vectors in sides:
                gradient.addcmul_(weights[tile].unsqueeze(-1), vectors)
            votes = self._cast(given, matrices) if self.correct is not None or agree is not None else None
            if self.correct is not None and votes is not None:
                votes, gradient = self._through_the_crf(votes, gradient, pairwise)
            if agree is not None and votes is not None:
                torch.sum(votes * agree.to(dtype), dim=3, out=agreements[tile])
            flat = gradient.flatten(2)  # [k, B, J·I]
            capsules[tile] = torch.matmul(flat, matrices.flatten(2).transpose(1, 2))  # [k, B, A]
            by_weight = torch.matmul(given.transpose(1, 2), flat).unflatten(2, self.shape[2:])  # [k, A, J, I]
            if self.positions == 1:
                weight[tile] = by_weight
            else:
                weight[tile.start // self.positions] += by_weight.sum(dim=0)
        self.kept = None
        found = (capsules.transpose(0, 1), weight, *pairwise)
        return found if agree is None else (agreements.transpose(0, 1), *found)

    def _through_the_crf(self, votes: Tensor, gradient: Tensor, pairwise: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Votes after the CRF, and the gradient before it, [k, B, J, I]; the pairwise weights' gradient is added up."""
        assert self.correct is not None
        votes = votes.requires_grad_()  # [k, B, J, I]
        leaves = tuple(each.detach().requires_grad_() for each in self.pairwise)
        with torch.enable_grad():
            corrected = self.correct(votes, *leaves)
        before, *others = torch.autograd.grad(corrected, (votes, *leaves), gradient)
        for total, each in zip(pairwise, others, strict=True):
            total += each
        return corrected.detach(), before

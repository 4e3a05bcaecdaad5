"""The votes of a few capsules at a time, in plain PyTorch: for CPUs, and for GPUs without Triton.

Without a CRF nothing is kept: a vote costs A multiplications, less than fetching it from memory. With a CRF the
corrected votes are computed once and kept, [K, B, J, I], unless they are used only once; and the CRF is computed a
second time, tile by tile, in the backward pass. The many tensors of the votes' size that its iterations leave behind
for autograd exist for one tile at a time. Where even the corrected votes are too many, the routing takes a few images
at a time: `lean_routing`.
"""

import copy
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from contextcaps.capsules.fused.lean_mean_field import LeanField, lean_field
from contextcaps.capsules.fused.lean_routing import Record, route, route_back
from contextcaps.capsules.fused.votes import Pair, RoutingFactors
from contextcaps.capsules.mean_field import MeanFieldCRF

__all__ = ["Gradients", "LeanVotes"]

TILE_ON_CPU, TILE_ON_GPU = 1 << 19, 1 << 26
"""Votes in a tile: 2 MiB in float32, what a core's cache holds; and enough to keep a GPU busy."""
KEPT_ON_CPU, KEPT_ON_GPU = 1 << 24, 1 << 30
"""Corrected votes that are kept at most, if an image has no more: 64 MiB in float32; 4 GiB."""


class Gradients(NamedTuple):
    """Where the gradients of the inputs are put together."""

    capsules: Tensor
    """[K, B, A]."""
    weight: Tensor
    """[K or D, A, J, I]."""
    pairwise: tuple[Tensor, ...]

    def of_images(self, images: slice) -> "Gradients":
        """The same place, for some of the images."""
        return self._replace(capsules=self.capsules[:, images])


class LeanVotes:
    """A `RoutingBackend` in plain PyTorch.

    Args:
        capsules: [B, K, A].
        weight: [K, A, J, I], or [D, A, J, I] shared by the K/D positions of a type.
        crf: what corrects the votes; None for none.
        pairwise: its potentials, in the precision to compute in.
        keep: keep the corrected votes, for several passes over them.
        tile_elements: votes to have in memory at a time; by default what suits the device.
        keep_elements: corrected votes that a routing over classes keeps at a time, by default what suits the device;
            those of one image at least. Other uses keep all.
    """

    def __init__(
        self,
        capsules: Tensor,
        weight: Tensor,
        crf: MeanFieldCRF | None = None,
        pairwise: tuple[Tensor, ...] = (),
        keep: bool = True,
        tile_elements: int | None = None,
        keep_elements: int | None = None,
    ) -> None:
        self.weight, self.pairwise = weight.detach(), tuple(each.detach() for each in pairwise)
        self.field: LeanField | None = None if crf is None else lean_field(crf, self.pairwise)
        self.positions = capsules.shape[1] // len(weight)  # that share a weight
        self.on_cpu = capsules.device.type == "cpu"
        tile, kept = (TILE_ON_CPU, KEPT_ON_CPU) if self.on_cpu else (TILE_ON_GPU, KEPT_ON_GPU)
        self.tile_elements = tile if tile_elements is None else tile_elements
        self.keep_elements = kept if keep_elements is None else keep_elements
        self.keep = keep and crf is not None
        self._given_back: tuple[Tensor, ...] | None = None  # the inputs' gradients, if the routing gave them
        self._take(capsules.detach().transpose(0, 1))

    def _take(self, capsules: Tensor) -> None:
        """Be the votes of capsules [K, B, A]."""
        self.capsules = capsules.contiguous()
        self.shape = (capsules.shape[1], len(capsules), *self.weight.shape[2:])  # B, K, J, I
        batch, _, classes, attributes = self.shape
        self.tile = max(1, self.tile_elements // (batch * classes * attributes))
        if self.positions > 1:  # a tile has positions of one type
            self.tile = min(self.tile, self.positions)
        self.kept: Tensor | None = None

    def of_images(self, images: slice) -> "LeanVotes":
        """The votes of some of the images; what is kept of them is kept apart."""
        part = copy.copy(self)
        part._take(self.capsules[:, images])
        return part

    def groups(self) -> list[slice]:
        """Images at a time, so that what is kept of their votes is not too much."""
        batch, count, classes, attributes = self.shape
        if not self.keep:
            return [slice(0, batch)]
        most = max(1, self.keep_elements // (count * classes * attributes))
        size = -(-batch // -(-batch // most))  # groups of about one size
        return [slice(start, min(start + size, batch)) for start in range(0, batch, size)]

    def parts(self) -> Iterator[tuple[slice, "LeanVotes"]]:
        """The groups, each with its votes; what is kept of a single one stays from the forward pass to the backward."""
        groups = self.groups()
        for images in groups:
            yield images, self if len(groups) == 1 else self.of_images(images)

    def prepare(self) -> None:
        """Nothing yet: what is kept is computed when it is first looked at."""

    def _keep(self) -> Tensor:
        batch, count, classes, attributes = self.shape
        kept = self.capsules.new_empty(count, batch, attributes, classes).transpose(2, 3)  # [K, B, J, I]
        for tile in self.tiles():
            kept[tile] = self._computed(tile)
        return kept

    def tiles(self) -> Iterator[slice]:
        """Capsules at a time."""
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

    def votes(self, tile: slice) -> Tensor:
        """[k, B, J, I], after the CRF."""
        if self.keep and self.kept is None:
            self.kept = self._keep()
        return self._computed(tile) if self.kept is None else self.kept[tile]

    def _computed(self, tile: slice) -> Tensor:
        votes = self._cast(self.capsules[tile], self._weight(tile))
        return votes if self.field is None else self.field.correct(votes)

    def sums(self, weights: Tensor) -> Tensor:
        by_capsule = weights.detach().transpose(0, 1).to(self.capsules.dtype)  # [K, B, J]
        total = self.zeros(self.shape[0], dtype=self.wide)  # [B, J, I]
        for tile in self.tiles():
            self.add_sum(total, self.votes(tile), by_capsule[tile].to(self.wide))
        return total.to(self.capsules.dtype)

    def agreements(self, vectors: Tensor) -> Tensor:
        batch, count, classes, _ = self.shape
        vectors = self.like_votes(vectors.detach())  # [B, J, I]
        found = self.capsules.new_empty(count, batch, classes)  # [K, B, J]
        for tile in self.tiles():
            torch.sum(self.votes(tile) * vectors, dim=3, out=found[tile])
        return found.transpose(0, 1)  # [B, K, J]

    def pull_back(self, pairs: list[Pair], agree: Tensor | None = None) -> tuple[Tensor, ...]:
        if self._given_back is not None:
            given, self._given_back = self._given_back, None
            return given
        sides = [
            (weights.transpose(0, 1).to(self.capsules.dtype), self.like_votes(vectors)) for weights, vectors in pairs
        ]
        agree = None if agree is None else self.like_votes(agree)
        found = self.no_gradients()
        agreements = self.capsules.new_empty(self.shape[1], self.shape[0], self.shape[2])  # [K, B, J]
        for tile in self.tiles():
            gradient = self.zeros(tile.stop - tile.start, self.shape[0])  # [k, B, J, I]
            for weights, vectors in sides:
                gradient.addcmul_(weights[tile].unsqueeze(-1), vectors)
            votes = self.give_back(tile, gradient, found, agree is not None)
            if agree is not None and votes is not None:
                torch.sum(votes * agree, dim=3, out=agreements[tile])
        given = self._finished(found)
        return given if agree is None else (agreements.transpose(0, 1), *given)

    def zeros(self, *first: int, dtype: torch.dtype | None = None) -> Tensor:
        """[…, J, I], in memory as the votes are: after a CRF, classes are innermost."""
        classes, attributes = self.shape[2:]
        if self.field is None:
            return self.capsules.new_zeros(*first, classes, attributes, dtype=dtype)
        return self.capsules.new_zeros(*first, attributes, classes, dtype=dtype).transpose(-1, -2)

    def like_votes(self, vectors: Tensor) -> Tensor:
        """Vectors [B, J, I] in memory as the votes are, in the same precision."""
        return self.zeros(len(vectors)).copy_(vectors)

    def no_gradients(self) -> Gradients:
        """Zeros, to begin with."""
        # What is added to many times is float32: in half precision it would stop growing.
        pairwise = tuple(torch.zeros_like(each, dtype=self.wide) for each in self.pairwise)
        once = self.positions == 1 and len(self.groups()) == 1
        weight = torch.zeros_like(self.weight, dtype=None if once else self.wide)
        return Gradients(torch.empty_like(self.capsules), weight, pairwise)

    def give_back(self, tile: slice, gradient: Tensor, found: Gradients, need_votes: bool = False) -> Tensor | None:
        """Carry a tile's gradient [k, B, J, I] to the inputs; and the tile's votes, after the CRF, if need be."""
        given, matrices = self.capsules[tile], self._weight(tile)
        votes = self._cast(given, matrices) if self.field is not None or need_votes else None
        if self.field is not None and votes is not None:
            votes, gradient = self.field.pull_back(votes, gradient, found.pairwise)
        flat = gradient.flatten(2)  # [k, B, J·I]
        found.capsules[tile] = torch.matmul(flat, matrices.flatten(2).transpose(1, 2))  # [k, B, A]
        if self.positions == 1 and found.weight.dtype == flat.dtype:
            found.weight[tile].flatten(2).baddbmm_(given.transpose(1, 2), flat)  # [k, A, J·I]
            return votes
        by_weight = torch.matmul(given.transpose(1, 2), flat).unflatten(2, self.shape[2:])  # [k, A, J, I]
        if self.positions == 1:
            found.weight[tile] += by_weight
        else:
            found.weight[tile.start // self.positions] += by_weight.sum(dim=0)
        return votes

    def _finished(self, found: Gradients) -> tuple[Tensor, ...]:
        self.kept = None
        dtype = self.capsules.dtype
        return found.capsules.transpose(0, 1), found.weight.to(dtype), *(each.to(dtype) for each in found.pairwise)

    routes = True
    """Whether an iteration of the routing is one pass."""

    def route(
        self, factors: RoutingFactors, iterations: int, gain: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, list[Record]]:
        return route(self, factors, iterations, gain, bias)

    def route_back(self, records: list[Record], gradient: Tensor) -> tuple[RoutingFactors, Tensor | None]:
        found = self.no_gradients()
        by_factors, by_bias = route_back(self, records, gradient, found)
        self._given_back = self._finished(found)
        return by_factors, by_bias

    @property
    def wide(self) -> torch.dtype:
        """What is added up in: float32 at least."""
        return torch.promote_types(self.capsules.dtype, torch.float32)

    def add_sum(self, total: Tensor, votes: Tensor, weights: Tensor) -> None:
        """Add Σ_k weights_kj · vote_kj to total [B, J, I], for votes [k, B, J, I] and weights [k, B, J]."""
        if not self.on_cpu:
            total += torch.einsum("kbj,kbji->bji", weights.to(votes.dtype), votes)
            return
        for each, factor in zip(votes, weights, strict=True):  # one capsule after the other stays in the cache
            total.addcmul_(each.to(total.dtype), factor.unsqueeze(-1))

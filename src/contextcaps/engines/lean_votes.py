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

from contextcaps.engines.lean_crf import LeanCRF

__all__ = ["Gradients", "LeanVotes"]

TILE_ON_CPU, TILE_ON_GPU = 1 << 19, 1 << 26
"""Votes in a tile: 2 MiB in float32, what a core's cache holds; and enough to keep a GPU busy."""
KEPT_ON_CPU, KEPT_ON_GPU = 1 << 24, 1 << 30
"""Corrected votes that are kept at most, if an image has no more: 64 MiB in float32; 4 GiB."""


class Gradients(NamedTuple):
    """Accumulators for the gradients of capsules and vote weights."""

    capsules: Tensor
    """[K, B, A]."""
    weight: Tensor
    """[K or D, A, J, I]."""

    def of_images(self, images: slice) -> "Gradients":
        """Return views for some of the images."""
        return self._replace(capsules=self.capsules[:, images])


class LeanVotes:
    """Votes [B, K, J, I], after the CRF, a tile of capsules at a time.

    Args:
        capsules: [B, K, A].
        weight: [K, A, J, I], or [D, A, J, I] shared by the K/D positions of a type; in the capsules' precision.
        crf: what corrects the votes; None for none.
        keep: keep the corrected votes, for several passes over them.
    """

    def __init__(self, capsules: Tensor, weight: Tensor, crf: LeanCRF | None, keep: bool) -> None:
        self.weight, self.crf = weight, crf
        self.positions = capsules.shape[1] // len(weight)  # that share a weight
        self.on_cpu = capsules.device.type == "cpu"
        self.tile_elements = TILE_ON_CPU if self.on_cpu else TILE_ON_GPU
        self.keep_elements = KEPT_ON_CPU if self.on_cpu else KEPT_ON_GPU
        self.keep = keep and crf is not None
        self._take(capsules.transpose(0, 1))

    def _take(self, capsules: Tensor) -> None:
        """Take capsules [K, B, A]."""
        self.capsules = capsules.contiguous()
        self.shape = (capsules.shape[1], len(capsules), *self.weight.shape[2:])  # B, K, J, I
        batch, _, classes, attributes = self.shape
        self.tile = max(1, self.tile_elements // (batch * classes * attributes))
        if self.positions > 1:  # a tile has positions of one type
            self.tile = min(self.tile, self.positions)
        self.kept: Tensor | None = None

    def of_images(self, images: slice) -> "LeanVotes":
        """Return the votes of some of the images, which keep their corrected votes for themselves."""
        part = copy.copy(self)
        part._take(self.capsules[:, images])
        return part

    def groups(self) -> list[slice]:
        """Return groups of images whose corrected votes are few enough to be kept."""
        batch, count, classes, attributes = self.shape
        if not self.keep:
            return [slice(0, batch)]
        most = max(1, self.keep_elements // (count * classes * attributes))
        size = -(-batch // -(-batch // most))  # groups of about one size
        return [slice(start, min(start + size, batch)) for start in range(0, batch, size)]

    def parts(self) -> Iterator[tuple[slice, "LeanVotes"]]:
        """Yield the groups, each with its votes; a single group is `self`, and keeps them for the backward pass."""
        groups = self.groups()
        for images in groups:
            yield images, self if len(groups) == 1 else self.of_images(images)

    @property
    def keeps_all(self) -> bool:
        """True where the corrected votes of all images are kept."""
        return self.keep and len(self.groups()) == 1

    def empty(self) -> Tensor:
        """Return an empty tensor for the votes, [K, B, J, I], with classes innermost in memory."""
        batch, count, classes, attributes = self.shape
        return self.capsules.new_empty(count, batch, attributes, classes).transpose(2, 3)

    def _keep(self) -> Tensor:
        kept = self.empty()
        for tile in self.tiles():
            kept[tile] = self._computed(tile)
        return kept

    def tiles(self) -> Iterator[slice]:
        """Yield slices of capsules, a tile each."""
        count, run = self.shape[1], self.positions if self.positions > 1 else self.shape[1]
        for first in range(0, count, run):
            for start in range(first, first + run, self.tile):
                yield slice(start, min(start + self.tile, first + run))

    def _weight(self, tile: slice) -> Tensor:
        """Return a tile's vote weights, [k or 1, A, J, I]."""
        if self.positions == 1:
            return self.weight[tile]
        type_of = tile.start // self.positions
        return self.weight[type_of : type_of + 1]

    def _cast(self, capsules: Tensor, weight: Tensor) -> Tensor:
        """Return the votes [k, B, J, I] of capsules [k, B, A], before the CRF."""
        matrices = weight.flatten(2)  # [k or 1, A, J·I]
        return torch.matmul(capsules, matrices).unflatten(2, weight.shape[2:])

    def votes(self, tile: slice) -> Tensor:
        """Return a tile's votes [k, B, J, I], after the CRF."""
        if self.keep and self.kept is None:
            self.kept = self._keep()
        return self._computed(tile) if self.kept is None else self.kept[tile]

    def _computed(self, tile: slice) -> Tensor:
        votes = self._cast(self.capsules[tile], self._weight(tile))
        return votes if self.crf is None else self.crf.correct(votes)

    def zeros(self, *first: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return zeros […, J, I] with the votes' strides: after a CRF, classes are innermost."""
        classes, attributes = self.shape[2:]
        if self.crf is None:
            return self.capsules.new_zeros(*first, classes, attributes, dtype=dtype)
        return self.capsules.new_zeros(*first, attributes, classes, dtype=dtype).transpose(-1, -2)

    def like_votes(self, vectors: Tensor) -> Tensor:
        """Return vectors [B, J, I] with the votes' strides and precision."""
        return self.zeros(len(vectors)).copy_(vectors)

    def no_gradients(self) -> Gradients:
        """Return accumulators to begin with."""
        # What is added to many times is float32: in half precision it would stop growing.
        once = self.positions == 1 and len(self.groups()) == 1
        weight = self.weight.new_zeros(self.weight.shape, dtype=None if once else self.wide)
        return Gradients(torch.empty_like(self.capsules), weight)

    def vjp(self, tile: slice, gradient: Tensor, found: Gradients, need_votes: bool = False) -> Tensor | None:
        """Add a tile's gradient [k, B, J, I] to the inputs'; return its votes after the CRF, if they were computed."""
        given, matrices = self.capsules[tile], self._weight(tile)
        votes = self._cast(given, matrices) if self.crf is not None or need_votes else None
        if self.crf is not None and votes is not None:
            votes, gradient = self.crf.vjp(votes, gradient)
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

    def as_given(self, found: Gradients) -> list[Tensor]:
        """Return the gradients of capsules [B, K, A], vote weights and potentials, in the capsules' precision."""
        dtype = self.capsules.dtype
        potentials = () if self.crf is None else self.crf.pairwise.gradients()
        return [found.capsules.transpose(0, 1), found.weight.to(dtype), *(each.to(dtype) for each in potentials)]

    @property
    def wide(self) -> torch.dtype:
        """Precision of sums: float32 at least."""
        return torch.promote_types(self.capsules.dtype, torch.float32)

    def add_sum(self, total: Tensor, votes: Tensor, weights: Tensor) -> None:
        """Add Σ_k weights_kj · vote_kj to total [B, J, I], for votes [k, B, J, I] and weights [k, B, J]."""
        if not self.on_cpu:
            total += torch.einsum("kbj,kbji->bji", weights.to(votes.dtype), votes)
            return
        for each, factor in zip(votes, weights, strict=True):  # one capsule after the other stays in the cache
            total.addcmul_(each.to(total.dtype), factor.unsqueeze(-1))

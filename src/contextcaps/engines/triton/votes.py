"""Compact votes: one tensor of the votes' size, in the precision of the computation, and nothing else of that size.

Forward, one kernel takes capsules through votes and CRF to the corrected votes, which are all that is kept. Backward,
the votes' gradient is written over them, and one more kernel takes it back through the CRF, computing anew what it
needs. Where a CRF does not fit on chip (many classes, float32, more than two iterations, low rank), its matrix products
are PyTorch's, for a few capsules at a time.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from contextcaps.engines.pairwise import OuterSum
from contextcaps.engines.triton import votes_kernels
from contextcaps.engines.triton.available import INTERPRETED
from contextcaps.engines.triton.streamed_crf import StreamedCRF

__all__ = ["CompactVotes", "next_power"]

_STREAMED = 1 << 25  # votes at a time where matrix products are PyTorch's
_STORED = 1 << 26  # votes at a time whose messages are written down for the pairwise weights' gradient


@dataclasses.dataclass(frozen=True)
class CompactVotes:
    """Votes [G, I, R, JP], after the CRF: of G groups (capsules, or types with shared weights) and R rows each.

    A row is an image; with shared vote weights, a position and an image. JP = J1 + J2 ≥ J columns; those beyond J are
    finite, and mean nothing.
    """

    capsules: Tensor
    """[G, R, A]."""
    weight: Tensor
    """[G, I, A, JP], zeros beyond J, in the capsules' precision."""
    batch: int
    """B."""
    classes: int
    """J."""
    potentials: tuple[Tensor, ...]
    """The CRF's potentials: none, one pairwise matrix [J, J], or two factors [J, r]; in the capsules' precision."""
    iterations: int
    """Mean-field iterations of the CRF."""

    @classmethod
    def prepare(
        cls, capsules: Tensor, weight: Tensor, potentials: tuple[Tensor, ...], iterations: int, dtype: torch.dtype
    ) -> "CompactVotes":
        """Lay out copies of capsules [B, K, A] and vote weights [K or D, A, J, I] in a precision."""
        batch, count, attributes = capsules.shape
        groups, _, classes, _ = weight.shape
        by_capsule = capsules.new_empty(count, batch, attributes, dtype=dtype).copy_(capsules.transpose(0, 1))
        by_attribute = padded(weight.permute(0, 3, 1, 2), 1, dtype)  # [G, I, A, JP]
        return cls(by_capsule.view(groups, -1, attributes), by_attribute, batch, classes, potentials, iterations).cast()

    def cast(self) -> "CompactVotes":
        """Return the same with potentials in the capsules' precision."""
        potentials = tuple(each.to(self.dtype) for each in self.potentials)
        return dataclasses.replace(self, potentials=potentials)

    @property
    def dtype(self) -> torch.dtype:
        return self.capsules.dtype

    @property
    def groups(self) -> int:
        """G."""
        return self.capsules.shape[0]

    @property
    def rows(self) -> int:
        """R."""
        return self.capsules.shape[1]

    @property
    def attributes(self) -> int:
        """A."""
        return self.capsules.shape[2]

    @property
    def decision(self) -> int:
        """I."""
        return self.weight.shape[1]

    @property
    def columns(self) -> int:
        """JP."""
        return self.weight.shape[3]

    @property
    def parts(self) -> tuple[int, int]:
        """J1 and J2."""
        return votes_kernels.split_classes(self.classes)

    @property
    def positions(self) -> int:
        """Capsules that share vote weights."""
        return self.rows // self.batch

    @property
    def count(self) -> int:
        """K."""
        return self.groups * self.positions

    @property
    def on_chip(self) -> bool:
        """True where one kernel takes capsules through votes and CRF to the corrected votes."""
        if self.attributes >= 32:  # more than the 99 KiB of shared memory of compute capability 8.6, with a CRF
            return False
        if not self.iterations:
            return self.columns <= 256
        return len(self.potentials) == 1 and self.iterations <= 2 and self.columns <= self._most_on_chip

    @property
    def _most_on_chip(self) -> int:
        """Columns of a CRF that registers have room for.

        Products in float32 take more of them, and so do those of GPUs whose matrix products do not read their operands
        from shared memory.
        """
        if self.dtype == torch.float32:
            return 32
        device = self.capsules.device
        wide = device.type != "cuda" or torch.cuda.get_device_capability(device)[0] in (9, 10)
        return 192 if wide else 80

    @property
    def _tile(self) -> int:
        return 16 if INTERPRETED else 64

    @property
    def _sizes_on_chip(self) -> dict[str, Any]:
        first, second = self.parts
        precision = "ieee" if self.dtype == torch.float32 else "tf32"
        return {
            "A": self.attributes, "AP": max(16, next_power(self.attributes + 1)), "I": self.decision,
            "TILE": self._tile, "J1": first, "J2": second, "PRECISION": precision, "num_warps": 4,
        }  # fmt: skip

    def _matrix(self) -> Tensor:
        """Return the pairwise matrix [JP, JP] without its diagonal; any tensor, for the kernel, without iterations."""
        if not self.iterations:
            return self.weight
        matrix = padded(self.potentials[0], 2, self.dtype)
        torch.diagonal(matrix).zero_()
        return matrix

    def empty(self) -> Tensor:
        """Return an empty tensor for the votes, [G, I, R, JP]."""
        return self.capsules.new_empty(self.groups, self.decision, self.rows, self.columns)

    def compute(self) -> Tensor:
        """Return the corrected votes [G, I, R, JP]."""
        votes = self.empty()
        if self.on_chip:
            grid = (self.groups, -(-self.rows // self._tile))
            votes_kernels.forward_kernel[grid](
                self.capsules, self.weight, self._matrix(), votes, self.rows, self.classes, float(self.classes),
                1 / self.classes, ITERATIONS=self.iterations, num_stages=3, **self._sizes_on_chip,
            )  # fmt: skip
            return votes
        crf, flat = self._streamed_crf(), (-1, self.columns)
        for groups, rows in self._chunks(_STREAMED):
            cast, place = self._cast(groups, rows), votes[groups, :, rows]  # [g, I, r, JP]
            if crf is not None:
                out = place.view(flat) if place.is_contiguous() else None
                cast = crf.correct(cast.view(flat), out).view(cast.shape)
            if cast.data_ptr() != place.data_ptr():
                place.copy_(cast)
        return votes

    def _chunks(self, elements: int) -> Iterator[tuple[slice, slice]]:
        """Yield slices of groups and rows, so many votes at a time."""
        one = self.decision * self.columns  # votes of a row
        rows = max(1, min(self.rows, elements // one))
        groups = max(1, elements // (one * self.rows))
        for group in range(0, self.groups, groups):
            for row in range(0, self.rows, rows):
                yield slice(group, min(group + groups, self.groups)), slice(row, min(row + rows, self.rows))

    def _cast(self, groups: slice, rows: slice) -> Tensor:
        """Return votes [g, I, r, JP] before the CRF, zeros beyond J."""
        return torch.matmul(self.capsules[groups, None, rows], self.weight[groups])

    def _streamed_crf(self) -> StreamedCRF | None:
        return StreamedCRF(self.potentials, self.iterations, self.columns) if self.potentials else None

    def _described(self, tensor: Tensor) -> tuple[Any, Any]:
        """Describe tiles of rows of [n, r, JP], by their first classes and by the others."""
        return tuple(TensorDescriptor.from_tensor(tensor, [1, self._tile, part]) for part in self.parts)

    def vjp(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of what `prepare` was given, in float32, for that of the votes [G, I, R, JP].

        Of capsules [B, K, A], vote weights [K or D, A, J, I] and potentials.
        """
        with torch.autocast(gradient.device.type, enabled=False):  # everything has its precision
            found = self._vjp_on_chip(gradient) if self.on_chip else self._vjp_streamed(gradient)
        return self.as_given(*found)

    def as_given(self, capsules: Tensor, weight: Tensor, *potentials: Tensor) -> tuple[Tensor, ...]:
        """Return gradients [G, R, A] and [G, I, A, JP] in the shapes that `prepare` was given; views, no copies."""
        by_capsule = capsules.view(self.count, self.batch, self.attributes).transpose(0, 1)  # [B, K, A]
        return by_capsule, weight[..., : self.classes].permute(0, 2, 3, 1), *potentials

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float32, device=self.capsules.device)

    def _vjp_on_chip(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """Return gradients of capsules [G, R, A], weights [G, I, A, JP] and the pairwise matrix, if there is one."""
        chunks = list(self._chunks(_STORED))
        groups, rows = chunks[0]  # the largest
        whole = rows.stop - rows.start == self.rows  # all rows of a group in one chunk
        most = (groups.stop - groups.start) * self.decision * (rows.stop - rows.start)
        kinds = max(0, 2 * self.iterations - 1)  # of what is kept: sent, sent again, the gradient between
        wide = gradient.new_empty(0, dtype=torch.float32)
        by_capsules = wide.new_empty(self.groups, self.decision, self.rows, self.attributes)  # [G, I, R, A]
        weight = wide.new_empty(self.weight.shape) if whole else self._zeros(*self.weight.shape)  # [G, I, A, JP]
        buffer = gradient.new_empty(kinds * most * self.columns)
        one = self.decision * self.attributes * self.columns  # weights of a group
        tile_buffer = wide.new_empty(-(-(rows.stop - rows.start) // self._tile) * (groups.stop - groups.start) * one)
        total = OuterSum(self.columns, self.columns, gradient) if self.iterations else None
        matrix = self._matrix()
        given, sizes, shape = self._described(gradient.view(-1, self.rows, self.columns)), self._sizes_on_chip, (0, 0)
        for groups, rows in chunks:
            count, length = groups.stop - groups.start, rows.stop - rows.start
            if shape != (count, length):  # all but the last chunks have the same
                shape = (count, length)
                tiles, here = -(-length // self._tile), count * self.decision * length * self.columns
                kept = buffer[: kinds * here].view(-1, length, self.columns)
                taken = self._described(kept) if len(kept) else given
                by_tile = tile_buffer[: tiles * count * one].view(tiles, count, *self.weight.shape[1:])
            votes_kernels.backward_kernel[(count, self.decision, tiles)](
                self.capsules, self.weight, matrix, *given, *taken,
                by_capsules, by_tile, groups.start, self.rows, rows.start, rows.stop, self.classes,
                float(self.classes), 1 / self.classes, ITERATIONS=self.iterations, num_stages=1, **sizes,
            )  # fmt: skip
            if whole:
                torch.sum(by_tile, dim=0, out=weight[groups])
            else:
                weight[groups] += by_tile.sum(dim=0)
            if total is not None:
                # What was sent last met the votes' gradient; what was sent before, that of the logits between.
                sent = kept.view(kinds, -1, self.columns)
                received = gradient[groups, :, rows].reshape(-1, self.columns)
                total.add(sent[self.iterations - 1], received)
                if self.iterations == 2:
                    total.add(sent[0], sent[2])
        capsules = by_capsules.sum(dim=1)  # [G, R, A]
        if total is None:
            return capsules, weight, *(torch.zeros_like(each) for each in self.potentials)
        pairwise = total.value[: self.classes, : self.classes].contiguous()  # [J, J]
        torch.diagonal(pairwise).zero_()
        return capsules, weight, pairwise

    def _vjp_streamed(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """Return the same, with the CRF's products by PyTorch."""
        capsules = torch.empty_like(self.capsules, dtype=torch.float32)  # [G, R, A]
        weight = self._zeros(*self.weight.shape)  # [G, I, A, JP]
        crf, flat = self._streamed_crf(), (-1, self.columns)
        for groups, rows in self._chunks(_STREAMED):
            given = gradient[groups, :, rows]  # [g, I, r, JP]
            if crf is not None:
                cast = self._cast(groups, rows)
                given = crf.vjp(cast.view(flat), given.reshape(flat)).view(given.shape)
            taken = self.capsules[groups, rows].unsqueeze(1)  # [g, 1, r, A]
            weight[groups] += torch.matmul(taken.transpose(2, 3), given)  # [g, I, A, JP]
            by_row = torch.matmul(given, self.weight[groups].transpose(2, 3))  # [g, I, r, A]
            capsules[groups, rows] = by_row.float().sum(dim=1)
        return capsules, weight, *(() if crf is None else crf.pairwise.gradients())


def padded(tensor: Tensor, dims: int, dtype: torch.dtype) -> Tensor:
    """Return a copy with JP instead of J columns (and, with two `dims`, rows), zeros beyond J."""
    classes = tensor.shape[-1]
    shape = (*tensor.shape[:-dims], *[sum(votes_kernels.split_classes(classes))] * dims)
    wider = torch.zeros(shape, dtype=dtype, device=tensor.device)
    inside: tuple[Any, ...] = (..., *[slice(classes)] * dims)
    wider[inside] = tensor
    return wider


def next_power(number: int) -> int:
    """Return the least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()

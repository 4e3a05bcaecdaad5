"""Votes in compact form: one tensor of the votes' size, in half precision if that is asked for, and nothing else.

Forward, one kernel takes capsules through votes and CRF to the corrected votes, which are all that is kept. Backward,
the votes' gradient is written over them, and one more takes it back through the CRF, computing anew what it needs.
Where a CRF does not fit on chip (many classes, float32, more than two iterations, low rank, a matrix per attribute,
Algorithm 1 to the letter), its matrix products are PyTorch's, for a few capsules at a time.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from contextcaps.capsules.fused import crf_kernels
from contextcaps.capsules.fused.availability import interpreted
from contextcaps.capsules.fused.lean_mean_field import lean_field
from contextcaps.capsules.fused.outer import OuterSum
from contextcaps.capsules.fused.streamed_field import StreamedField, streams
from contextcaps.capsules.mean_field import MeanFieldCRF

__all__ = ["CompactVotes", "next_power"]

_STREAMED = 1 << 25  # votes at a time where matrix products are PyTorch's
_STORED = 1 << 26  # votes at a time whose messages are written down for the pairwise weights' gradient


class CompactVotes:
    """Votes [G, I, R, JP], after the CRF: of G groups (capsules, or types with shared weights) and R rows each.

    A row is an image; with shared vote weights, a position and an image. JP = J1 + J2 ≥ J columns; those beyond J are
    finite, and mean nothing.

    Args:
        capsules: [B, K, A].
        weight: [K, A, J, I], or [D, A, J, I] shared by the K/D positions of a type.
        crf: what corrects the votes; None for none.
        dtype: what to compute in; that of the capsules by default.
    """

    def __init__(
        self, capsules: Tensor, weight: Tensor, crf: MeanFieldCRF | None = None, dtype: torch.dtype | None = None
    ) -> None:
        self.batch, self.count, self.attributes = capsules.shape  # B, K, A
        self.groups, _, self.classes, self.decision = weight.shape  # G, A, J, I
        self.positions = self.count // self.groups
        self.rows = self.positions * self.batch
        self.dtype = capsules.dtype if dtype is None else dtype
        self.crf, self.iterations = crf, 0 if crf is None else crf.iterations
        self.parts = crf_kernels.split_classes(self.classes)  # J1, J2
        self.columns = sum(self.parts)  # JP
        self.on_chip = self._fits_on_chip(capsules.device)
        self._kinds = (capsules.dtype, weight.dtype)
        by_capsule = capsules.detach().transpose(0, 1).to(self.dtype).contiguous()  # [K, B, A]
        self.capsules = by_capsule.view(self.groups, self.rows, self.attributes)  # [G, R, A]
        self.weight = self._padded(weight.detach().permute(0, 3, 1, 2), 1)  # [G, I, A, JP]
        self.pairwise = () if crf is None else tuple(each.detach().to(self.dtype) for each in crf.potentials)
        self.matrix: Tensor | None = None
        if self.on_chip and self.iterations:
            self.matrix = self._padded(self.pairwise[0], 2)  # [JP, JP], without a diagonal
            torch.diagonal(self.matrix).zero_()
        self.votes: Tensor | None = None
        """The corrected votes, or, once the backward pass has been over them, their gradient."""
        self.overwritten = False
        """Whether it is their gradient."""

    def _padded(self, tensor: Tensor, dims: int) -> Tensor:
        """With JP instead of J columns (and rows), zeros, in the votes' precision."""
        shape = (*tensor.shape[:-dims], *[self.columns] * dims)
        wider = torch.zeros(shape, dtype=self.dtype, device=tensor.device)
        inside: tuple[Any, ...] = (..., *[slice(self.classes)] * dims)
        wider[inside] = tensor
        return wider

    def _fits_on_chip(self, device: torch.device) -> bool:
        if self.attributes >= 32:  # more than the 99 KiB of shared memory of compute capability 8.6, with a CRF
            return False
        if self.crf is None or not (self.iterations or self.crf.literal):
            return self.columns <= 256
        full = self.crf.weight is not None and self.crf.weight.ndim == 2
        return full and not self.crf.literal and self.iterations <= 2 and self.columns <= self._most_on_chip(device)

    def _most_on_chip(self, device: torch.device) -> int:
        """Columns of a CRF that registers have room for.

        Products in float32 take more of them, and so do those of GPUs whose matrix products do not read their operands
        from shared memory.
        """
        if self.dtype == torch.float32:
            return 32
        wide = device.type != "cuda" or torch.cuda.get_device_capability(device)[0] in (9, 10)
        return 192 if wide else 80

    @property
    def _tile(self) -> int:
        return 16 if interpreted() else 64

    @property
    def _sizes_on_chip(self) -> dict[str, Any]:
        first, second = self.parts
        precision = "ieee" if self.dtype == torch.float32 else "tf32"
        return {
            "A": self.attributes, "AP": max(16, next_power(self.attributes + 1)), "I": self.decision,
            "TILE": self._tile, "J1": first, "J2": second, "PRECISION": precision, "num_warps": 4,
        }  # fmt: skip

    def made(self) -> Tensor:
        """[G, I, R, JP], computed when first asked for, and again after a backward pass has used them up."""
        if self.votes is None or self.overwritten:
            self.prepare()
        assert self.votes is not None
        return self.votes

    def prepare(self) -> None:
        """Compute the votes."""
        self.votes, self.overwritten = None, False
        self.votes = self.capsules.new_empty(self.groups, self.decision, self.rows, self.columns)
        if self.on_chip:
            grid = (self.groups, -(-self.rows // self._tile))
            crf_kernels.forward_kernel[grid](
                self.capsules, self.weight, self.weight if self.matrix is None else self.matrix, self.votes, self.rows,
                self.classes, float(self.classes), 1 / self.classes, ITERATIONS=self.iterations, num_stages=3,
                **self._sizes_on_chip,
            )  # fmt: skip
            return
        field = self._field()
        for groups, rows in self._chunks(_STREAMED):
            cast = self._cast(groups, rows)  # [g, I, r, JP]
            place = self.votes[groups, :, rows]
            if field is not None:
                flat = (-1, self.columns)
                out = place.view(flat) if place.is_contiguous() else None
                cast = field.correct(cast.view(flat), out).view(cast.shape)
            elif self.crf is not None:
                by_class = cast[..., : self.classes].permute(0, 2, 3, 1)  # [g, r, J, I]
                corrected = lean_field(self.crf, self.pairwise).correct(by_class)
                cast[..., : self.classes] = corrected.permute(0, 3, 1, 2)
            if cast.data_ptr() != place.data_ptr():
                place.copy_(cast)

    def _chunks(self, elements: int) -> Iterator[tuple[slice, slice]]:
        """Groups and rows, so many votes at a time."""
        one = self.decision * self.columns  # votes of a row
        rows = max(1, min(self.rows, elements // one))
        groups = max(1, elements // (one * self.rows))
        for group in range(0, self.groups, groups):
            for row in range(0, self.rows, rows):
                yield slice(group, min(group + groups, self.groups)), slice(row, min(row + rows, self.rows))

    def _cast(self, groups: slice, rows: slice) -> Tensor:
        """Votes [g, I, r, JP] before the CRF, zeros beyond J."""
        return torch.matmul(self.capsules[groups, None, rows], self.weight[groups])

    def _field(self) -> StreamedField | None:
        """The CRF for rows of votes, if it is of that kind."""
        if self.crf is None or not streams(self.crf):
            return None
        return StreamedField(self.crf, self.pairwise, self.columns)

    def _described(self, tensor: Tensor) -> tuple[Any, Any]:
        """Tiles of rows of [n, r, JP], by their first classes and by the others."""
        return tuple(TensorDescriptor.from_tensor(tensor, [1, self._tile, part]) for part in self.parts)

    def unmake(self) -> tuple[Tensor, ...]:
        """Gradients of capsules [B, K, A], vote weights [K or D, A, J, I] and potentials, for that of the votes."""
        assert self.votes is not None
        assert self.overwritten
        gradient = self.votes  # [G, I, R, JP]
        with torch.autocast(gradient.device.type, enabled=False):  # everything has its precision
            found = self._unmake_on_chip(gradient) if self.on_chip else self._unmake_streamed(gradient)
        self.votes, self.overwritten = None, False
        capsules, weight, *pairwise = found
        by_capsule = capsules.view(self.count, self.batch, self.attributes).transpose(0, 1)  # [B, K, A]
        by_class = weight[..., : self.classes].permute(0, 2, 3, 1)  # [G, A, J, I]
        kinds = (*self._kinds, *(() if self.crf is None else (each.dtype for each in self.crf.potentials)))
        return tuple(each.to(kind) for each, kind in zip((by_capsule, by_class, *pairwise), kinds, strict=True))

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float32, device=self.capsules.device)

    def _unmake_on_chip(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """Gradients of capsules [G, R, A] and weights [G, I, A, JP], and of the pairwise matrix, if there is one."""
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
        total = OuterSum(self.columns, self.columns, gradient.device) if self.iterations else None
        matrix = self.weight if self.matrix is None else self.matrix
        given, sizes, shape = self._described(gradient.view(-1, self.rows, self.columns)), self._sizes_on_chip, (0, 0)
        for groups, rows in chunks:
            count, length = groups.stop - groups.start, rows.stop - rows.start
            if shape != (count, length):  # all but the last chunks have the same
                shape = (count, length)
                tiles, here = -(-length // self._tile), count * self.decision * length * self.columns
                kept = buffer[: kinds * here].view(-1, length, self.columns)
                taken = self._described(kept) if len(kept) else given
                by_tile = tile_buffer[: tiles * count * one].view(tiles, count, *self.weight.shape[1:])
            crf_kernels.backward_kernel[(count, self.decision, tiles)](
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
            return capsules, weight, *(torch.zeros_like(each) for each in self.pairwise)
        pairwise = total.value[: self.classes, : self.classes].contiguous()  # [J, J]
        torch.diagonal(pairwise).zero_()
        return capsules, weight, pairwise

    def _unmake_streamed(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """The same, with the CRF's products by PyTorch."""
        capsules = torch.empty_like(self.capsules, dtype=torch.float32)  # [G, R, A]
        weight = self._zeros(*self.weight.shape)  # [G, I, A, JP]
        field = self._field()
        pairwise = tuple(torch.zeros_like(each, dtype=torch.float32) for each in self.pairwise if field is None)
        for groups, rows in self._chunks(_STREAMED):
            given = gradient[groups, :, rows]  # [g, I, r, JP]
            if field is not None:
                cast, flat = self._cast(groups, rows), (-1, self.columns)
                given = field.pull_back(cast.view(flat), given.reshape(flat)).view(given.shape)
            elif self.crf is not None:
                votes, reached = (
                    each[..., : self.classes].permute(0, 2, 3, 1) for each in (self._cast(groups, rows), given)
                )  # [g, r, J, I]
                _, before = lean_field(self.crf, self.pairwise).pull_back(votes, reached, pairwise)
                given = torch.zeros_like(given)
                given[..., : self.classes] = before.permute(0, 3, 1, 2)
            taken = self.capsules[groups, rows].unsqueeze(1)  # [g, 1, r, A]
            weight[groups] += torch.matmul(taken.transpose(2, 3), given)  # [g, I, A, JP]
            by_row = torch.matmul(given, self.weight[groups].transpose(2, 3))  # [g, I, r, A]
            capsules[groups, rows] = by_row.float().sum(dim=1)
        return capsules, weight, *(pairwise if field is None else field.pairwise.gradients())


def next_power(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()

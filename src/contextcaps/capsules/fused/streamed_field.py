"""The CRF where it does not fit on chip: matrix products by PyTorch, the softmax and its gradient by Triton.

Votes are rows [n, JP], JP ≥ J: JP is a multiple of 16, and matrix products are faster where rows are aligned.
Potentials are zero in the columns beyond J, so that what the votes' gradient has there, finite, comes to nothing.
With q = softmax(l_t), minus what is sent is m = J · (1/J - q), and l_{t+1} = u + m · P, P
without its diagonal; or P = L · Rᵀ - diag(o), o_j = Σ_r L_jr · R_jr, of low rank.
Backward, with g the gradient of l_{t+1}:

    du += g,  dP += mᵀ · g,  dl_t = q · (h - Σ_j q_j · h_j),  h = -J · g · Pᵀ,

and l_0 = u. A row is read once for what is sent, and once, with g · Pᵀ, for the gradient.
"""

from typing import Protocol

import torch
import triton
from torch import Tensor

from contextcaps.capsules.fused import field_kernels
from contextcaps.capsules.fused.outer import OuterSum
from contextcaps.capsules.mean_field import MeanFieldCRF

__all__ = ["StreamedField", "streams"]


def streams(crf: MeanFieldCRF) -> bool:
    """Whether this is a CRF of that kind: one pairwise matrix or two factors of it, and not to the letter."""
    return not crf.literal and (crf.weight is None or crf.weight.ndim == 2)


class _Pairwise(Protocol):
    def add_messages(self, rows: Tensor, sent: Tensor, out: Tensor | None = None) -> Tensor:
        """rows + sent · P, in `out` if that is given."""

    def pull_back(self, gradient: Tensor) -> Tensor:
        """gradient · Pᵀ."""

    def add_gradient(self, sent: Tensor, gradient: Tensor) -> None:
        """Add what sentᵀ · gradient means for the potentials."""

    def gradients(self) -> tuple[Tensor, ...]:
        """Of the potentials, in float32."""


class _Full:
    def __init__(self, columns: int, matrix: Tensor) -> None:
        self.classes = len(matrix)
        self.matrix = _widened(matrix, columns, columns).fill_diagonal_(0.0)  # [JP, JP]
        self.total = OuterSum(columns, columns, matrix.device)

    def add_messages(self, rows: Tensor, sent: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.addmm(rows, sent, self.matrix, out=out)

    def pull_back(self, gradient: Tensor) -> Tensor:
        return torch.mm(gradient, self.matrix.t())

    def add_gradient(self, sent: Tensor, gradient: Tensor) -> None:
        self.total.add(sent, gradient)

    def gradients(self) -> tuple[Tensor, ...]:
        return (self.total.value[: self.classes, : self.classes].contiguous().fill_diagonal_(0.0),)


class _LowRank:
    def __init__(self, columns: int, left: Tensor, right: Tensor) -> None:
        self.classes, rank = left.shape
        self.left, self.right = (_widened(each, columns, rank) for each in (left, right))  # [JP, r]
        self.own = (self.left.float() * self.right.float()).sum(dim=1)  # [JP]
        self.by_left, self.by_right = (OuterSum(columns, rank, left.device) for _ in range(2))
        self.by_own = torch.zeros_like(self.own)

    def add_messages(self, rows: Tensor, sent: Tensor, out: Tensor | None = None) -> Tensor:
        found = torch.addmm(rows, torch.mm(sent, self.left), self.right.t(), out=out)
        return found.addcmul_(sent, self.own.to(sent.dtype), value=-1)

    def pull_back(self, gradient: Tensor) -> Tensor:
        found = torch.mm(torch.mm(gradient, self.right), self.left.t())
        return found.addcmul_(gradient, self.own.to(gradient.dtype), value=-1)

    def add_gradient(self, sent: Tensor, gradient: Tensor) -> None:
        self.by_left.add(sent, torch.mm(gradient, self.right))
        self.by_right.add(gradient, torch.mm(sent, self.left))
        self.by_own -= (sent * gradient).sum(dim=0, dtype=torch.float32)

    def gradients(self) -> tuple[Tensor, ...]:
        own = self.by_own[:, None]  # [JP, 1]
        both = self.by_left.value + own * self.right, self.by_right.value + own * self.left
        return tuple(each[: self.classes] for each in both)


class StreamedField:
    """A CRF for rows of votes, a chunk of them at a time; the potentials' gradients add up in it.

    Args:
        crf: one that `streams`.
        potentials: in the votes' precision.
        columns: JP.
    """

    def __init__(self, crf: MeanFieldCRF, potentials: tuple[Tensor, ...], columns: int) -> None:
        self.iterations = crf.iterations
        kind = _Full if len(potentials) == 1 else _LowRank
        self.pairwise: _Pairwise = kind(columns, *potentials)
        self.sizes = (crf.classes, columns, float(crf.classes))  # J, JP and the messages' scale
        width = triton.next_power_of_2(columns)
        self.launch = {"WIDTH": width, "num_warps": max(1, min(16, width // 1024))}

    def _send(self, logits: Tensor) -> Tensor:
        sent = torch.empty_like(logits)
        field_kernels.send_kernel[(len(logits),)](logits, sent, *self.sizes, 1 / self.sizes[0], **self.launch)
        return sent

    def correct(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """[n, JP], contiguous, after the CRF; in `out` if that is given and there are iterations."""
        logits = rows
        for turn in range(self.iterations):
            last = turn + 1 == self.iterations
            logits = self.pairwise.add_messages(rows, self._send(logits), out if last else None)
        return logits

    def pull_back(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """The gradient [n, JP] of rows before the CRF, for that after it."""
        passed = [rows]
        for _ in range(self.iterations - 1):
            passed.append(self.pairwise.add_messages(rows, self._send(passed[-1])))
        reached, before = gradient, None
        for logits in reversed(passed[: self.iterations]):
            self.pairwise.add_gradient(self._send(logits), reached)
            before = reached if before is None else before + reached
            found = self.pairwise.pull_back(reached)
            field_kernels.pull_kernel[(len(rows),)](logits, found, found, *self.sizes, **self.launch)
            reached = found
        return reached if before is None else before + reached


def _widened(matrix: Tensor, rows: int, columns: int) -> Tensor:
    """A copy with so many rows and columns, zeros."""
    wider = matrix.new_zeros(rows, columns)
    wider[: matrix.shape[0], : matrix.shape[1]] = matrix
    return wider

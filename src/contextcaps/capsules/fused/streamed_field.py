"""The CRF where it does not fit on chip: matrix products by PyTorch, the softmax and its gradient by Triton.

Votes are rows [n, J]. With q = softmax(l_t), minus what is sent is m = J · (1/J - q), and l_{t+1} = u + m · P, P
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
from contextcaps.capsules.mean_field import MeanFieldCRF

__all__ = ["StreamedField", "streams"]


def streams(crf: MeanFieldCRF) -> bool:
    """Whether this is a CRF of that kind: one pairwise matrix or two factors of it, and not to the letter."""
    return not crf.literal and (crf.weight is None or crf.weight.ndim == 2)


class _Pairwise(Protocol):
    def add_messages(self, rows: Tensor, sent: Tensor) -> Tensor:
        """rows + sent · P."""

    def pull_back(self, gradient: Tensor) -> Tensor:
        """gradient · Pᵀ."""

    def add_gradient(self, sent: Tensor, gradient: Tensor) -> None:
        """Add what sentᵀ · gradient means for the potentials."""

    def gradients(self) -> tuple[Tensor, ...]:
        """Of the potentials, in float32."""


class _Full:
    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix.clone().fill_diagonal_(0.0)  # [J, J]
        self.total: Tensor | None = None

    def add_messages(self, rows: Tensor, sent: Tensor) -> Tensor:
        return torch.addmm(rows, sent, self.matrix)

    def pull_back(self, gradient: Tensor) -> Tensor:
        return torch.mm(gradient, self.matrix.t())

    def add_gradient(self, sent: Tensor, gradient: Tensor) -> None:
        found = _outer(sent, gradient)
        self.total = found if self.total is None else self.total.add_(found)

    def gradients(self) -> tuple[Tensor, ...]:
        if self.total is None:  # there were no iterations
            return (torch.zeros_like(self.matrix, dtype=torch.float32),)
        return (self.total.fill_diagonal_(0.0),)


class _LowRank:
    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right = left, right  # [J, r], [J, r]
        self.own = (left.float() * right.float()).sum(dim=1)  # [J]
        self.by_left, self.by_right = (torch.zeros_like(each, dtype=torch.float32) for each in (left, right))
        self.by_own = torch.zeros_like(self.own)

    def add_messages(self, rows: Tensor, sent: Tensor) -> Tensor:
        found = torch.addmm(rows, torch.mm(sent, self.left), self.right.t())
        return found.addcmul_(sent, self.own.to(sent.dtype), value=-1)

    def pull_back(self, gradient: Tensor) -> Tensor:
        found = torch.mm(torch.mm(gradient, self.right), self.left.t())
        return found.addcmul_(gradient, self.own.to(gradient.dtype), value=-1)

    def add_gradient(self, sent: Tensor, gradient: Tensor) -> None:
        self.by_left += _outer(sent, torch.mm(gradient, self.right))
        self.by_right += _outer(gradient, torch.mm(sent, self.left))
        self.by_own -= (sent * gradient).sum(dim=0, dtype=torch.float32)

    def gradients(self) -> tuple[Tensor, ...]:
        own = self.by_own[:, None]
        return self.by_left + own * self.right, self.by_right + own * self.left


class StreamedField:
    """A CRF for rows of votes, a chunk of them at a time; the potentials' gradients add up in it.

    Args:
        crf: one that `streams`.
        potentials: in the votes' precision.
    """

    def __init__(self, crf: MeanFieldCRF, potentials: tuple[Tensor, ...]) -> None:
        self.iterations, self.classes = crf.iterations, crf.classes
        self.pairwise: _Pairwise = _Full(*potentials) if len(potentials) == 1 else _LowRank(*potentials)
        width = triton.next_power_of_2(self.classes)
        self.launch = {"WIDTH": width, "num_warps": max(1, min(16, width // 256))}

    def _send(self, logits: Tensor) -> Tensor:
        sent = torch.empty_like(logits)
        field_kernels.send_kernel[(len(logits),)](
            logits, sent, self.classes, float(self.classes), 1 / self.classes, **self.launch
        )
        return sent

    def correct(self, rows: Tensor) -> Tensor:
        """[n, J], contiguous, after the CRF."""
        logits = rows
        for _ in range(self.iterations):
            logits = self.pairwise.add_messages(rows, self._send(logits))
        return logits

    def pull_back(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """The gradient [n, J] of rows before the CRF, for that after it."""
        passed = [rows]
        for _ in range(self.iterations - 1):
            passed.append(self.pairwise.add_messages(rows, self._send(passed[-1])))
        reached, before = gradient, None
        for logits in reversed(passed[: self.iterations]):
            self.pairwise.add_gradient(self._send(logits), reached)
            before = reached if before is None else before + reached
            found = self.pairwise.pull_back(reached)
            field_kernels.pull_kernel[(len(rows),)](
                logits, found, found, self.classes, float(self.classes), **self.launch
            )
            reached = found
        return reached if before is None else before + reached


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ · right in float32, of [n, J] and [n, m]."""
    if left.is_cuda and left.dtype != torch.float32:
        return torch.mm(left.t(), right, out_dtype=torch.float32)
    return torch.mm(left.t().float(), right.float())

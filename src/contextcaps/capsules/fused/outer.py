"""Sums of outer products over millions of rows: what pairwise weights' gradients are."""

import torch
from torch import Tensor

__all__ = ["OuterSum"]

_MOST_PARTS = 64
_NUMBERS = 1 << 21  # in all parts together, beyond the first


class OuterSum:
    """Σ leftᵀ · right in float32, of rows [n, J] and [n, m], many at a time.

    The rows are divided into parts, each with a sum of its own: a single product keeps few of a GPU's cores busy.

    Args:
        first, second: J and m.
        device: where the rows are.
    """

    def __init__(self, first: int, second: int, device: torch.device) -> None:
        self.parts = max(1, min(_MOST_PARTS, _NUMBERS // (first * second)))
        self._total = torch.zeros(self.parts, first, second, dtype=torch.float32, device=device)

    def add(self, left: Tensor, right: Tensor) -> None:
        """Add leftᵀ · right; rows [n, J] and [n, m] of one precision."""
        even = len(left) // self.parts * self.parts
        sides = [each[:even].view(self.parts, -1, each.shape[1]) for each in (left, right)]
        if even and left.is_cuda and left.dtype != torch.float32:
            self._total = torch.baddbmm(self._total, sides[0].transpose(1, 2), sides[1], out_dtype=torch.float32)
        elif even:
            self._total.baddbmm_(sides[0].transpose(1, 2).float(), sides[1].float())
        if even < len(left):
            self._total[0] += left[even:].float().t() @ right[even:].float()

    @property
    def value(self) -> Tensor:
        """[J, m]."""
        return self._total.sum(dim=0)

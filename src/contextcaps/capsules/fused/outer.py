"""Sums of outer products over millions of rows: what pairwise weights' gradients are."""

import torch
from torch import Tensor

__all__ = ["OuterSum"]

_MOST_PARTS = 64
_NUMBERS = 1 << 21  # in all parts together, unless one has more


class OuterSum:
    """Σ leftᵀ · right in float32, of rows [n, J] and [n, m], many at a time.

    The rows are divided into parts, each with a sum of its own: a single product keeps few of a GPU's cores busy.

    Args:
        first, second: J and m.
        device: where the rows are.
    """

    def __init__(self, first: int, second: int, device: torch.device) -> None:
        self.parts = max(1, min(_MOST_PARTS, _NUMBERS // (first * second)))
        self._shape, self._device = (self.parts, first, second), device
        self._total: Tensor | None = None

    def add(self, left: Tensor, right: Tensor) -> None:
        """Add leftᵀ · right; rows [n, J] and [n, m] of one precision."""
        total = self._zeros() if self._total is None else self._total
        even = len(left) // self.parts * self.parts
        sides = [each[:even].view(self.parts, -1, each.shape[1]) for each in (left, right)]
        if even and left.is_cuda and left.dtype != torch.float32:
            total = torch.baddbmm(total, sides[0].transpose(1, 2), sides[1], out_dtype=torch.float32)
        elif even:
            total.baddbmm_(sides[0].transpose(1, 2).float(), sides[1].float())
        if even < len(left):
            total[0] += left[even:].float().t() @ right[even:].float()
        self._total = total

    def _zeros(self) -> Tensor:
        return torch.zeros(self._shape, dtype=torch.float32, device=self._device)

    @property
    def value(self) -> Tensor:
        """[J, m]."""
        return (self._zeros() if self._total is None else self._total).sum(dim=0)

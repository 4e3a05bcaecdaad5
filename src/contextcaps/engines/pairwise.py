"""Products with a CRF's pairwise potentials for rows of votes, and the potentials' gradients.

A row holds what one capsule votes for one attribute, [n, JP] with JP ≥ J columns; potentials are zero in the columns
beyond J, so that whatever finite number stands there comes to nothing. P is the pairwise matrix without its diagonal.
"""

from typing import Protocol

import torch
from torch import Tensor

__all__ = ["OuterSum", "Pairwise", "make_pairwise"]

_MOST_PARTS = 64
_NUMBERS = 1 << 21  # in all parts together, unless one has more


class Pairwise(Protocol):
    """Pairwise potentials P [J, J], in one of their forms."""

    def add_messages(self, rows: Tensor, sent: Tensor, out: Tensor | None = None) -> Tensor:
        """Return rows + sent · P, in `out` if that is given."""

    def vjp(self, gradient: Tensor) -> Tensor:
        """Return gradient · Pᵀ."""

    def add_gradient(self, sent: Tensor, gradient: Tensor) -> None:
        """Add sentᵀ · gradient to the gradient of P."""

    def gradients(self) -> tuple[Tensor, ...]:
        """Return the potentials' gradients, in float32 at least."""


def make_pairwise(potentials: tuple[Tensor, ...], columns: int | None = None) -> Pairwise:
    """Return the products with potentials [J, J], [I, J, J] or two factors [J, r], for rows of JP columns (J if None).

    One matrix per attribute is for rows of J columns whose innermost index but one is the attribute.
    """
    columns = potentials[0].shape[-1 if len(potentials) == 1 else 0] if columns is None else columns
    if len(potentials) == 2:
        return _LowRank(columns, *potentials)
    return _Full(columns, *potentials) if potentials[0].ndim == 2 else _PerAttribute(*potentials)


class _Full:
    def __init__(self, columns: int, matrix: Tensor) -> None:
        self.classes = len(matrix)
        self.matrix = _padded(matrix, columns, columns).fill_diagonal_(0.0)  # [JP, JP]
        self.total = OuterSum(columns, columns, matrix)

    def add_messages(self, rows: Tensor, sent: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.addmm(rows, sent, self.matrix, out=out)

    def vjp(self, gradient: Tensor) -> Tensor:
        return torch.mm(gradient, self.matrix.t())

    def add_gradient(self, sent: Tensor, gradient: Tensor) -> None:
        self.total.add(sent, gradient)

    def gradients(self) -> tuple[Tensor, ...]:
        return (self.total.value[: self.classes, : self.classes].contiguous().fill_diagonal_(0.0),)


class _LowRank:
    """P = left · rightᵀ - diag(own), own_j = Σ_r left_jr · right_jr."""

    def __init__(self, columns: int, left: Tensor, right: Tensor) -> None:
        self.classes, rank = left.shape
        self.left, self.right = (_padded(each, columns, rank) for each in (left, right))  # [JP, r]
        wide = torch.promote_types(left.dtype, torch.float32)
        self.own = (self.left.to(wide) * self.right.to(wide)).sum(dim=1)  # [JP]
        self.by_left, self.by_right = (OuterSum(columns, rank, left) for _ in range(2))
        self.by_own = torch.zeros_like(self.own)

    def add_messages(self, rows: Tensor, sent: Tensor, out: Tensor | None = None) -> Tensor:
        found = torch.addmm(rows, torch.mm(sent, self.left), self.right.t(), out=out)
        return found.addcmul_(sent, self.own.to(sent.dtype), value=-1)

    def vjp(self, gradient: Tensor) -> Tensor:
        found = torch.mm(torch.mm(gradient, self.right), self.left.t())
        return found.addcmul_(gradient, self.own.to(gradient.dtype), value=-1)

    def add_gradient(self, sent: Tensor, gradient: Tensor) -> None:
        self.by_left.add(sent, torch.mm(gradient, self.right))
        self.by_right.add(gradient, torch.mm(sent, self.left))
        self.by_own -= (sent * gradient).sum(dim=0, dtype=self.own.dtype)

    def gradients(self) -> tuple[Tensor, ...]:
        own = self.by_own[:, None]  # [JP, 1]
        both = self.by_left.value + own * self.right, self.by_right.value + own * self.left
        return tuple(each[: self.classes] for each in both)


class _PerAttribute:
    """One matrix per attribute; rows are [(n, I), J]."""

    def __init__(self, matrices: Tensor) -> None:
        self.matrices = matrices - torch.diag_embed(torch.diagonal(matrices, dim1=1, dim2=2))  # [I, J, J]
        self.total = torch.zeros_like(matrices, dtype=torch.promote_types(matrices.dtype, torch.float32))

    def _by_attribute(self, rows: Tensor) -> Tensor:
        """Return [(n, I), J] as [I, n, J], a view."""
        return rows.view(-1, *self.matrices.shape[:2]).transpose(0, 1)

    def add_messages(self, rows: Tensor, sent: Tensor, out: Tensor | None = None) -> Tensor:
        messages = torch.bmm(self._by_attribute(sent), self.matrices)  # [I, n, J]
        return torch.add(rows, messages.transpose(0, 1).reshape(rows.shape), out=out)

    def vjp(self, gradient: Tensor) -> Tensor:
        found = torch.bmm(self._by_attribute(gradient), self.matrices.transpose(1, 2))  # [I, n, J]
        return found.transpose(0, 1).reshape(gradient.shape)

    def add_gradient(self, sent: Tensor, gradient: Tensor) -> None:
        self.total += torch.bmm(self._by_attribute(sent).transpose(1, 2), self._by_attribute(gradient))

    def gradients(self) -> tuple[Tensor, ...]:
        torch.diagonal(self.total, dim1=1, dim2=2).zero_()
        return (self.total,)


def _padded(matrix: Tensor, rows: int, columns: int) -> Tensor:
    """Return a copy with so many rows and columns, zeros beyond its own."""
    wider = matrix.new_zeros(rows, columns)
    wider[: matrix.shape[0], : matrix.shape[1]] = matrix
    return wider


class OuterSum:
    """Σ leftᵀ · right in float32 at least, of rows [n, J] and [n, m], many at a time.

    On a GPU the rows are divided into parts, each with a sum of its own: a single product keeps few of its cores busy.

    Args:
        first, second: J and m.
        like: a tensor of the rows' precision, where they are.
    """

    def __init__(self, first: int, second: int, like: Tensor) -> None:
        self.parts = 1 if like.device.type == "cpu" else max(1, min(_MOST_PARTS, _NUMBERS // (first * second)))
        self._shape, self._like = (self.parts, first, second), like
        self._total: Tensor | None = None

    def add(self, left: Tensor, right: Tensor) -> None:
        """Add leftᵀ · right; rows [n, J] and [n, m] of one precision."""
        total = self._zeros() if self._total is None else self._total
        even = len(left) // self.parts * self.parts
        sides = [each[:even].view(self.parts, -1, each.shape[1]) for each in (left, right)]
        if even and left.is_cuda and left.dtype != total.dtype:
            total = torch.baddbmm(total, sides[0].transpose(1, 2), sides[1], out_dtype=total.dtype)
        elif even:
            total.baddbmm_(sides[0].transpose(1, 2).to(total.dtype), sides[1].to(total.dtype))
        if even < len(left):
            total[0] += left[even:].to(total.dtype).t() @ right[even:].to(total.dtype)
        self._total = total

    def _zeros(self) -> Tensor:
        return self._like.new_zeros(self._shape, dtype=torch.promote_types(self._like.dtype, torch.float32))

    @property
    def value(self) -> Tensor:
        """[J, m]."""
        return (self._zeros() if self._total is None else self._total).sum(dim=0)

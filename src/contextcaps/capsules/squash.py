"""Squash and length: what makes the length of a capsule a score between 0 and 1.

Sabour, Frosst, Hinton, "Dynamic Routing Between Capsules", 2017, Equation 1. https://arxiv.org/abs/1710.09829
"""

import torch
from torch import Tensor, nn

from contextcaps.capsules.guards import require_tensor, upcast

__all__ = ["squash", "Squash", "lengths", "Lengths"]


def squash(vectors: Tensor, dim: int = -1) -> Tensor:
    """Shrink vectors to lengths below 1, short ones to almost nothing: |s|²/(1+|s|²) · s/|s|.

    Written as s · |s|/(1+|s|²), so that value and gradient at the zero vector are zero rather than 0/0. Half-precision
    input is squashed in float32 (|s|² overflows float16 from |s| = 256 on) and handed back in its own dtype.

    Args:
        vectors: [..., I, ...], any floating dtype.
        dim: the dimension that holds a vector's attributes.

    Returns:
        The squashed vectors, shaped as the input.

    >>> squash(torch.tensor([3.0, 4.0])).norm()  # 25 / 26
    tensor(0.9615)
    """
    require_tensor("vectors", vectors, "... I")
    wide = upcast(vectors)  # [..., I, ...]
    norm = torch.linalg.vector_norm(wide, dim=dim, keepdim=True)  # [..., 1, ...]
    return (wide * (norm / (1 + norm * norm))).to(vectors.dtype)  # [..., I, ...]


def lengths(vectors: Tensor, dim: int = -1) -> Tensor:
    """Return the Euclidean length of each vector, with gradient zero (not NaN) at the zero vector.

    Args:
        vectors: [..., I, ...], any floating dtype.
        dim: the dimension that holds a vector's attributes.

    Returns:
        The lengths, shaped as the input without `dim`.

    >>> lengths(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([5., 0.])
    """
    require_tensor("vectors", vectors, "... I")
    return torch.linalg.vector_norm(upcast(vectors), dim=dim).to(vectors.dtype)


class Squash(nn.Module):
    """`squash` as a module."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, vectors: Tensor) -> Tensor:
        return squash(vectors, self.dim)


class Lengths(nn.Module):
    """`lengths` as a module."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, vectors: Tensor) -> Tensor:
        return lengths(vectors, self.dim)

"""Votes: what each primary capsule predicts for each decision capsule (the paper's predictions P).

Sabour et al. 2017, Equation 2: vote_kj = W_kj · capsule_k. One matrix per capsule and class, or one per capsule type
and class when the weight is shared by all grid positions; the shared form has no size of its own and takes any grid.
"""

import torch
from torch import Tensor, nn

from contextcaps.capsules.guards import require_count, require_same_dtype, require_tensor

__all__ = ["cast_votes", "Votes"]


def cast_votes(capsules: Tensor, weight: Tensor) -> Tensor:
    """Return each capsule's vote for each class: vote_kj(i) = Σ_a capsule_k(a) · weight_k(a, j, i).

    Args:
        capsules: [B, K, A].
        weight: [K, A, J, I], a matrix for each capsule; or [D, A, J, I] with D a divisor of K, a matrix for each
            capsule type, shared by the K/D grid positions of that type (k is type-major).

    Returns:
        votes [B, K, J, I].

    >>> cast_votes(torch.ones(2, 12, 8), torch.ones(12, 8, 5, 16)).shape
    torch.Size([2, 12, 5, 16])
    >>> cast_votes(torch.ones(2, 12, 8), torch.ones(3, 8, 5, 16)).shape  # 3 types at 4 positions
    torch.Size([2, 12, 5, 16])
    """
    batch, count, attributes = require_tensor("capsules", capsules, "B K A")
    groups, _, classes, decision_attributes = require_tensor("weight", weight, "K A J I", A=attributes)
    require_same_dtype(capsules=capsules, weight=weight)
    if groups == count:
        return torch.einsum("bka,kaji->bkji", capsules, weight)  # [B, K, J, I]
    if count % groups:
        raise ValueError(
            f"weight: expected shape [K={count}, A={attributes}, J, I], or [D, A, J, I] with D a divisor of K={count}, "
            f"got {list(weight.shape)}"
        )
    by_type = capsules.reshape(batch, groups, count // groups, attributes)  # [B, D, H·W, A]
    votes = torch.einsum("bdpa,daji->bdpji", by_type, weight)  # [B, D, H·W, J, I]
    return votes.reshape(batch, count, classes, decision_attributes)  # [B, K, J, I]


class Votes(nn.Module):
    """`cast_votes` with its weight: [K, A, J, I], or [D, A, J, I] for weights shared by the grid positions.

    Args:
        capsules: K, or with shared weights D.
        attributes: A, attributes of a primary capsule.
        classes: J.
        decision_attributes: I, attributes of a decision capsule.
        std: standard deviation of the weights at the start (Sabour's code uses 0.1).
    """

    def __init__(
        self, capsules: int, attributes: int, classes: int, decision_attributes: int, std: float = 0.1
    ) -> None:
        super().__init__()
        shape = (
            require_count("capsules", capsules),
            require_count("attributes", attributes),
            require_count("classes", classes),
            require_count("decision_attributes", decision_attributes),
        )
        self.weight = nn.Parameter(torch.empty(shape).normal_(std=std))  # [K or D, A, J, I]

    def forward(self, capsules: Tensor) -> Tensor:
        return cast_votes(capsules, self.weight)

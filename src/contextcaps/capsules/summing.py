"""The two things that are done with votes, whether they are a tensor or never all in memory: sums and agreements."""

import torch
from torch import Tensor

from contextcaps.capsules.fused.votes import ImplicitVotes
from contextcaps.capsules.guards import require_tensor

__all__ = ["AnyVotes", "agree_with_votes", "require_votes", "scale_votes", "sum_votes"]

AnyVotes = Tensor | ImplicitVotes
"""Votes [B, K, J, I]."""


def require_votes(votes: AnyVotes) -> tuple[int, ...]:
    """(B, K, J, I) of votes, or a ValueError."""
    return votes.shape if isinstance(votes, ImplicitVotes) else require_tensor("votes", votes, "B K J I")


def sum_votes(votes: AnyVotes, weights: Tensor) -> Tensor:
    """Σ_k weights_kj · vote_kj, with weights [B, K, J] → [B, J, I]."""
    if isinstance(votes, ImplicitVotes):
        return votes.weighted_sum(weights)
    return torch.einsum("bkj,bkji->bji", weights.to(votes.dtype), votes)


def agree_with_votes(votes: AnyVotes, vectors: Tensor) -> Tensor:
    """Σ_i vote_kji · vectors_ji, with vectors [B, J, I] → [B, K, J]."""
    if isinstance(votes, ImplicitVotes):
        return votes.agreement(vectors)
    return torch.einsum("bkji,bji->bkj", votes, vectors.to(votes.dtype))


def scale_votes(votes: AnyVotes, factors: Tensor) -> AnyVotes:
    """Votes times factors [B, K, 1 or J]."""
    if isinstance(votes, ImplicitVotes):
        return votes.scaled(factors)
    return votes * factors.unsqueeze(-1).to(votes.dtype)

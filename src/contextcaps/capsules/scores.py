"""Scores as log-odds, and as the lengths of decision capsules."""

import torch
from torch import Tensor

from contextcaps.capsules.guards import require_tensor, upcast
from contextcaps.capsules.squash import lengths

__all__ = ["length_logits", "length_of_logits", "rescale_decisions", "score_logits"]


def score_logits(scores: Tensor, eps: float = 1e-4) -> Tensor:
    """Return the log-odds of scores, which are kept `eps` away from 0 and 1; in float32 at least, also under autocast.

    The log-odds of a length of 0 would be infinite, and near it their slope 1/p is what limits `eps` from below.

    >>> score_logits(torch.tensor([0.5, 0.0]))
    tensor([ 0.0000, -9.2102])
    """
    return torch.logit(upcast(scores), eps=eps)


def length_logits(lengths: Tensor, eps: float = 1e-4) -> Tensor:
    """Return log-odds of lengths that are drawn into eps … 1 − eps: logit(eps + (1 − 2·eps) · |v|).

    They are finite, and unlike those of `score_logits` keep the order of lengths close to 0.

    >>> length_logits(torch.tensor([0.5, 1e-6, 0.0]))
    tensor([ 0.0000, -9.2003, -9.2102])
    """
    return torch.logit(eps + (1 - 2 * eps) * upcast(lengths).clamp(0, 1))


def length_of_logits(logits: Tensor, eps: float = 1e-4) -> Tensor:
    """Return the lengths that have these log-odds, the inverse of `length_logits`."""
    return ((torch.sigmoid(upcast(logits)) - eps) / (1 - 2 * eps)).clamp(0, 1)


def rescale_decisions(decisions: Tensor, scores: Tensor, eps: float = 1e-4) -> Tensor:
    """Return decision capsules with the same direction and `scores` as their lengths: q_j · s_j / |s_j|.

    A capsule shorter than `eps` is lengthened no more than one of that length, and the zero vector, which has no
    direction, stays zero; so value and gradient are finite everywhere.

    Args:
        decisions: [B, J, I].
        scores: [B, J].

    >>> rescale_decisions(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[0.5]]))
    tensor([[[0.3000, 0.4000]]])
    """
    batch, classes, _ = require_tensor("decisions", decisions, "B J I")
    require_tensor("scores", scores, "B J", B=batch, J=classes)
    wide = upcast(decisions)  # [B, J, I]
    factors = upcast(scores) / lengths(wide).clamp_min(eps)  # [B, J]
    return (wide * factors.unsqueeze(-1)).to(decisions.dtype)

"""Dynamic routing: votes to decision capsules, by agreement.

Sabour et al. 2017, Procedure 1, with the paper's trainable initial routing weights (Section 3.1) in each of the
readings that its text allows. Which reading does what, and why: docs/decisions/initial-routing-weights.md.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from contextcaps.capsules.guards import require_choice, require_count, require_same_dtype, require_tensor, upcast
from contextcaps.capsules.squash import squash

__all__ = ["dynamic_routing", "DynamicRouting", "RoutingResult", "InitialAs", "Normalize"]

InitialAs = Literal["couplings", "logits", "gate"]
Normalize = Literal["classes", "capsules"]


class RoutingResult(NamedTuple):
    """Decisions of dynamic routing, and the couplings that they come from."""

    decisions: Tensor
    """[B, J, I], squashed: a decision's length is its class's score."""
    couplings: Tensor
    """[B, K, J], the weights with which the votes were summed into the decisions."""
    logits: Tensor
    """[B, K, J], the routing logits that the couplings came from; float32 for half-precision votes."""
    sums: Tensor
    """[B, J, I], the decisions before the squash."""


def dynamic_routing(
    votes: Tensor,
    iterations: int = 3,
    initial: Tensor | None = None,
    initial_as: InitialAs = "couplings",
    normalize: Normalize = "classes",
    bias: Tensor | None = None,
    gain: Tensor | float = 1.0,
) -> RoutingResult:
    """Route votes to decisions: couplings from logits, sum, squash, and logits that grow with agreement.

    Each iteration computes c = softmax(b), s_j = gain · Σ_k c_kj · vote_kj + bias_j, v_j = squash(s_j), and, but for
    the last, b_kj ← b_kj + vote_kj · v_j.

    Args:
        votes: [B, K, J, I].
        iterations: how often couplings are computed; 1 sums all votes with the same weight.
        initial: initial routing weights, [B, K] (the same for all classes) or [B, K, J].
        initial_as: what `initial` is taken for. "couplings": it is the couplings of the first iteration, and multiplies
            the softmaxed couplings of the later ones. "gate": it multiplies the votes. "logits": it is added to the
            logits before the softmax; constant over classes and normalised over classes it cancels, and is a no-op.
        normalize: the softmax runs over "classes" (Sabour) or over "capsules".
        bias: [J, I], added before the squash.
        gain: a single number; 1 is Sabour's routing. With J classes the couplings are 1/J, and a gain makes up for it.

    >>> result = dynamic_routing(torch.randn(2, 12, 5, 16))
    >>> result.decisions.shape, result.couplings.sum(dim=2).allclose(torch.ones(2, 12))
    (torch.Size([2, 5, 16]), True)
    """
    batch, count, classes, attributes = require_tensor("votes", votes, "B K J I")
    require_count("iterations", iterations)
    require_choice("initial_as", initial_as, ("couplings", "logits", "gate"))
    require_choice("normalize", normalize, ("classes", "capsules"))
    if bias is not None:
        require_tensor("bias", bias, "J I", J=classes, I=attributes)
        require_same_dtype(votes=votes, bias=bias)
    weights = None  # [B, K, J or 1]
    if initial is not None:
        weights = _per_class(initial, batch, count, classes)
        require_same_dtype(votes=votes, initial=initial)

    if weights is not None and initial_as == "gate":
        votes = votes * weights.unsqueeze(-1).to(votes.dtype)  # [B, K, J, I]
    wide = torch.promote_types(votes.dtype, torch.float32)
    logits = torch.zeros(batch, count, classes, dtype=wide, device=votes.device)  # [B, K, J]
    if weights is not None and initial_as == "logits":
        logits = logits + weights  # [B, K, J]

    softmax_dim = 2 if normalize == "classes" else 1
    for iteration in range(iterations):
        couplings = torch.softmax(logits, dim=softmax_dim)  # [B, K, J]
        if weights is not None and initial_as == "couplings":
            couplings = weights.expand_as(couplings) if iteration == 0 else couplings * weights  # [B, K, J]
        sums = gain * torch.einsum("bkj,bkji->bji", couplings.to(votes.dtype), votes)  # [B, J, I]
        if bias is not None:
            sums = sums + bias  # [B, J, I]
        decisions = squash(sums)  # [B, J, I]
        if iteration + 1 < iterations:
            agreement = torch.einsum("bkji,bji->bkj", votes, decisions.to(votes.dtype))  # [B, K, J]
            logits = logits + agreement  # [B, K, J]
    return RoutingResult(decisions, couplings.to(votes.dtype), logits, sums)


def _per_class(initial: Tensor, batch: int, count: int, classes: int) -> Tensor:
    """Return weights [B, K] or [B, K, J] so that they broadcast over [B, K, J]."""
    if isinstance(initial, Tensor) and initial.ndim == 2:
        require_tensor("initial", initial, "B K", B=batch, K=count)
        return upcast(initial.unsqueeze(-1))  # [B, K, 1]
    try:
        require_tensor("initial", initial, "B K J", B=batch, K=count, J=classes)
    except ValueError as error:
        raise ValueError(f"{error} (or [B={batch}, K={count}], the same for all classes)") from None
    return upcast(initial)  # [B, K, J]


class DynamicRouting(nn.Module):
    """`dynamic_routing` with its settings and, if asked for, a learnable bias before the squash.

    Args:
        iterations, initial_as, normalize: as in `dynamic_routing`.
        bias_shape: (J, I) for a learnable bias that starts at zero; None for none.
    """

    def __init__(
        self,
        iterations: int = 3,
        initial_as: InitialAs = "couplings",
        normalize: Normalize = "classes",
        bias_shape: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.iterations = require_count("iterations", iterations)
        self.initial_as: InitialAs = initial_as
        self.normalize: Normalize = normalize
        require_choice("initial_as", initial_as, ("couplings", "logits", "gate"))
        require_choice("normalize", normalize, ("classes", "capsules"))
        self.bias = None if bias_shape is None else nn.Parameter(torch.zeros(bias_shape))  # [J, I]

    def forward(self, votes: Tensor, initial: Tensor | None = None, gain: Tensor | float = 1.0) -> RoutingResult:
        return dynamic_routing(votes, self.iterations, initial, self.initial_as, self.normalize, self.bias, gain)

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}, initial_as={self.initial_as!r}, normalize={self.normalize!r}"

"""EM routing: decision capsules as Gaussian clusters of votes. Another choice of routing, for the same votes.

Hinton, Sabour, Frosst, "Matrix Capsules with EM Routing", 2018, Procedure 1. https://openreview.net/forum?id=HJWLfGWRb
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from contextcaps.capsules.guards import require_count, require_same_dtype, require_tensor, upcast
from contextcaps.capsules.squash import lengths

__all__ = ["em_routing", "EMRouting", "EMRoutingResult", "inverse_temperatures"]


class EMRoutingResult(NamedTuple):
    """Decisions of EM routing, and the clusters that they come from."""

    decisions: Tensor
    """[B, J, I]: the cluster means scaled to the length of their activations, so that a length is a score."""
    activations: Tensor
    """[B, J], each class's activation between 0 and 1."""
    logits: Tensor
    """[B, J], of which the activations are the sigmoids: λ(β_a − cost)."""
    means: Tensor
    """[B, J, I], the cluster means: the poses of the decision capsules."""
    couplings: Tensor
    """[B, K, J], the share of each capsule's vote in each cluster, times the capsule's activation."""


def inverse_temperatures(iterations: int, final: float = 0.01) -> list[float]:
    """Return the schedule λ_t = final · (1 − 0.95^(t+1)) of the public implementations.

    >>> [round(value, 6) for value in inverse_temperatures(3)]
    [0.0005, 0.000975, 0.001426]
    """
    return [final * (1 - 0.95 ** (step + 1)) for step in range(iterations)]


def em_routing(
    votes: Tensor,
    activations: Tensor,
    beta_use: Tensor,
    beta_activate: Tensor,
    iterations: int = 3,
    inverse_temperature: list[float] | None = None,
    eps: float = 1e-6,
) -> EMRoutingResult:
    """Fit one Gaussian per class to the votes, by expectation and maximisation.

    M-step: mean and variance of each class's votes, weighted by assignment and activation; a class is active when its
    cluster is cheap to describe, a_j = σ(λ(β_a − Σ_i (β_u + log σ_ji) · mass_j)). E-step: each capsule's assignment is
    proportional to a_j times the Gaussian density of its vote.

    Args:
        votes: [B, K, J, I].
        activations: [B, K], the primary capsules' activations between 0 and 1.
        beta_use: [J], cost of describing with a cluster, β_u.
        beta_activate: [J], cost of leaving it out, β_a.
        iterations: M-steps.
        inverse_temperature: λ of each iteration; `inverse_temperatures(iterations)` by default.
        eps: least mass, variance and activation.
    """
    batch, count, classes, _ = require_tensor("votes", votes, "B K J I")
    require_tensor("activations", activations, "B K", B=batch, K=count)
    require_tensor("beta_use", beta_use, "J", J=classes)
    require_tensor("beta_activate", beta_activate, "J", J=classes)
    require_same_dtype(votes=votes, activations=activations, beta_use=beta_use, beta_activate=beta_activate)
    require_count("iterations", iterations)
    schedule = inverse_temperatures(iterations) if inverse_temperature is None else list(inverse_temperature)
    if len(schedule) != iterations:
        raise ValueError(f"inverse_temperature: expected {iterations} values, one per iteration, got {len(schedule)}")

    wide, active = upcast(votes), upcast(activations)  # [B, K, J, I], [B, K]
    assignments = wide.new_full((batch, count, classes), 1 / classes)  # [B, K, J]
    for iteration, lam in enumerate(schedule):
        shares = assignments * active.unsqueeze(-1)  # [B, K, J]
        mass = shares.sum(dim=1) + eps  # [B, J]
        means = torch.einsum("bkj,bkji->bji", shares, wide) / mass.unsqueeze(-1)  # [B, J, I]
        deviations = (wide - means.unsqueeze(1)).square()  # [B, K, J, I]
        variances = torch.einsum("bkj,bkji->bji", shares, deviations) / mass.unsqueeze(-1)  # [B, J, I]
        variances = variances.clamp_min(eps)
        cost = (beta_use[:, None] + 0.5 * variances.log()) * mass.unsqueeze(-1)  # [B, J, I]
        logits = lam * (beta_activate - cost.sum(dim=-1))  # [B, J]
        present = torch.sigmoid(logits)  # [B, J]
        if iteration + 1 < iterations:
            spread = 0.5 * (2 * math.pi * variances).log().sum(dim=-1)  # [B, J]
            distance = torch.einsum("bkji,bji->bkj", deviations, 0.5 / variances)  # [B, K, J]
            log_density = -(distance + spread.unsqueeze(1))  # [B, K, J]
            prior = present.clamp_min(eps).log().unsqueeze(1)  # [B, 1, J]
            assignments = torch.softmax(prior + log_density, dim=2)  # [B, K, J]

    # A mean of length zero has no direction to scale: it keeps length zero, and gets no gradient from there.
    sizes = lengths(means).unsqueeze(-1)  # [B, J, 1]
    directions = torch.where(sizes > eps, means / sizes.clamp_min(eps), 0)  # [B, J, I]
    decisions = directions * present.unsqueeze(-1)  # [B, J, I]
    outputs = (decisions, present, logits, means, shares)
    return EMRoutingResult(*(output.to(votes.dtype) for output in outputs))


class EMRouting(nn.Module):
    """`em_routing` with its costs β_u and β_a per class, which start at zero; `start_at` sets β_a to a better start.

    Args:
        classes: J.
        iterations: M-steps.
        final_inverse_temperature: what the schedule of λ rises towards; public code's by default, at which few capsules
            for each class hardly learn (`EMConfig.inverse_temperature` goes by their number).
    """

    def __init__(self, classes: int, iterations: int = 3, final_inverse_temperature: float = 0.01) -> None:
        super().__init__()
        self.iterations = require_count("iterations", iterations)
        self.final_inverse_temperature = final_inverse_temperature
        self.beta_use = nn.Parameter(torch.zeros(require_count("classes", classes)))  # [J]
        self.beta_activate = nn.Parameter(torch.zeros(classes))  # [J]

    def forward(self, votes: Tensor, activations: Tensor) -> EMRoutingResult:
        return em_routing(votes, activations, self.beta_use, self.beta_activate, self.iterations, self.schedule)

    @property
    def schedule(self) -> list[float]:
        """λ of each iteration."""
        return inverse_temperatures(self.iterations, self.final_inverse_temperature)

    @torch.no_grad()
    def start_at(self, target: float, votes: Tensor, activations: Tensor, rounds: int = 10) -> None:
        """Set β_a, alike for all classes, so that these votes give activations of the mean `target`.

        Each round moves β_a by what would do if the assignments stayed; they hardly change as long as λ is small enough
        for the classes to share the votes. Where it is not, the mean may end elsewhere.
        """
        for _ in range(rounds):
            logits = self(votes, activations).logits.double()  # [B, J]
            if abs(float(logits.sigmoid().mean()) - target) < 0.01 * target:
                return
            # With all logits moved below or above the target's, so is their mean.
            aim = math.log(target / (1 - target))
            low, high = aim - float(logits.max()), aim - float(logits.min())
            for _ in range(60):  # the mean rises with the shift
                middle = (low + high) / 2
                low, high = (low, middle) if float((logits + middle).sigmoid().mean()) > target else (middle, high)
            self.beta_activate.add_(low / self.schedule[-1])

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}, final_inverse_temperature={self.final_inverse_temperature}"

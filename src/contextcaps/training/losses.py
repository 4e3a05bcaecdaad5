"""Losses on class scores: each sums over classes and averages over the batch, but for the two-way loss.

All of them compute in float32 at least, also under autocast, and stay finite for scores of exactly 0 and 1.
Weights for the classes (`class_weights.py`) multiply each class's terms; no weights are the same as weights of 1.
A target of `UNKNOWN` (255) takes its pair of image and class out of the sum, and of every pair of classes; nothing is
scaled up for it, so every pair that is known counts as much as it does where all are known.
Where scores are sigmoids of logits, cross-entropy, ASL and the two-way loss can be given those: a present class whose
score rounds to 0 then still has a slope to climb.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from torch.nn.functional import logsigmoid, softplus

from contextcaps.capsules.guards import require_between, require_tensor, upcast
from contextcaps.data.unknown import is_unknown
from contextcaps.models import ModelConfig
from contextcaps.training.config import LossName

__all__ = [
    "margin_loss",
    "length_cross_entropy",
    "asymmetric_loss",
    "spread_loss",
    "two_way_loss",
    "LOSSES",
    "TAKE_LOGITS",
    "resolve_loss",
]


def margin_loss(
    scores: Tensor,
    targets: Tensor,
    positive: float = 0.9,
    negative: float = 0.1,
    down_weight: float = 0.5,
    class_weights: Tensor | None = None,
) -> Tensor:
    """Compute the margin loss over independent classes (Sabour et al. 2017, Equation 4).

    L = Σ_j T_j · max(0, m⁺ − |v_j|)² + λ (1 − T_j) · max(0, |v_j| − m⁻)².

    Args:
        scores: [B, J], lengths of the decision capsules.
        targets: [B, J], 1 where the class is present, 0 where not, 255 where that is unknown; bool and integer types
            are fine.
        positive: m⁺, the length from which a present class costs nothing.
        negative: m⁻, the length up to which an absent class costs nothing.
        down_weight: λ, the weight of absent classes.
        class_weights: [J], at least 0: each multiplies its class's terms, present and absent; or [B, J], by image.

    >>> margin_loss(torch.tensor([[0.9, 0.1, 0.4]]), torch.tensor([[1, 0, 1]]))  # (0.9 - 0.4)²
    tensor(0.2500)
    """
    scores, is_present, is_absent = _prepare(scores, targets)
    present = is_present * (positive - scores).clamp_min(0).square()  # [B, J]
    absent = is_absent * (scores - negative).clamp_min(0).square()  # [B, J]
    return _reduce(_weigh(present + down_weight * absent, class_weights))


def length_cross_entropy(
    scores: Tensor,
    targets: Tensor,
    eps: float = 1e-6,
    class_weights: Tensor | None = None,
    logits: Tensor | None = None,
) -> Tensor:
    """Compute binary cross-entropy with lengths as probabilities: −Σ_j T_j log|v_j| + (1 − T_j) log(1 − |v_j|).

    Args:
        scores, targets, class_weights: as in `margin_loss`.
        eps: lengths are kept this far from 0 and 1.
        logits: [B, J], where the scores are their sigmoids: the logarithms are then taken of those, exactly.
    """
    scores, is_present, is_absent = _prepare(scores, targets)
    if logits is not None:
        terms = cross_entropy(_prepare(logits, targets)[0], is_present, reduction="none")  # [B, J]
        terms = terms * (is_present + is_absent)  # [B, J], 0 for an unknown label
    else:
        chances = scores.clamp(eps, 1 - eps)  # [B, J]
        terms = -(is_present * chances.log() + is_absent * torch.log1p(-chances))  # [B, J]
    return _reduce(_weigh(terms, class_weights))


def asymmetric_loss(
    scores: Tensor,
    targets: Tensor,
    gamma_negative: float = 4.0,
    gamma_positive: float = 0.0,
    clip: float = 0.05,
    eps: float = 1e-6,
    class_weights: Tensor | None = None,
    logits: Tensor | None = None,
) -> Tensor:
    """Compute the asymmetric loss (ASL): easy absent classes count less, very easy ones not at all.

    Ridnik et al., "Asymmetric Loss For Multi-Label Classification", 2021, https://arxiv.org/abs/2009.14119: with
    p_m = max(p − clip, 0), L = −Σ_j T (1−p)^γ⁺ log p + (1−T) p_m^γ⁻ log(1−p_m), on probabilities p (here: lengths).
    The powers weigh the logarithms and pass no gradient, and γ⁺ = 0, as in the authors' code for COCO.

    Args:
        scores, targets, class_weights: as in `margin_loss`.
        gamma_negative: focusing exponent of absent classes, γ⁻.
        gamma_positive: focusing exponent of present classes, γ⁺.
        clip: probability up to which an absent class costs nothing.
        eps: logarithms are taken of at least this.
        logits: as in `length_cross_entropy`.
    """
    scores, is_present, is_absent = _prepare(scores, targets)
    chances = scores.clamp(0, 1)  # [B, J]
    shifted = (chances - clip).clamp_min(0)  # [B, J]
    if logits is not None:
        wide, _, _ = _prepare(logits, targets)
        log_present = logsigmoid(wide)  # [B, J]
        # log(1 − p_m) = min(log(1 − p + clip), 0)
        log_absent = torch.logaddexp(logsigmoid(-wide), wide.new_tensor(clip).log()).clamp_max(0)  # [B, J]
    else:
        log_present = chances.clamp_min(eps).log()  # [B, J]
        log_absent = (1 - shifted).clamp_min(eps).log()  # [B, J]
    present = is_present * (1 - chances).detach().pow(gamma_positive) * log_present  # [B, J]
    absent = is_absent * shifted.detach().pow(gamma_negative) * log_absent  # [B, J]
    return _reduce(_weigh(-(present + absent), class_weights))


def spread_loss(scores: Tensor, targets: Tensor, margin: float = 0.2, class_weights: Tensor | None = None) -> Tensor:
    """Compute the spread loss (Hinton et al. 2018, Equation 3): present classes should beat absent ones by a margin.

    L = Σ_{t present} Σ_{i absent} max(0, m − (a_t − a_i))²; with one label per image this is the published form, whose
    margin rises from 0.2 to 0.9 during training.

    Args:
        scores, targets: as in `margin_loss`.
        margin: m.
        class_weights: [J] or [B, J], at least 0: each multiplies the pairs in which its class is the present one.
    """
    scores, is_present, is_absent = _prepare(scores, targets)
    gaps = scores.unsqueeze(2) - scores.unsqueeze(1)  # [B, J present, J absent]
    pairs = is_present.unsqueeze(2) * is_absent.unsqueeze(1)  # [B, J present, J absent]
    terms = pairs * (margin - gaps).clamp_min(0).square()  # [B, J present, J absent]
    return _reduce(_weigh(terms, class_weights).flatten(1))


def two_way_loss(
    scores: Tensor,
    targets: Tensor,
    temperature: float = 4.0,
    eps: float = 1e-6,
    class_weights: Tensor | None = None,
    logits: Tensor | None = None,
) -> Tensor:
    """Compute the two-way loss: present pairs above absent ones, within each image and within each class of the batch.

    Kobayashi, "Two-Way Multi-Label Loss", CVPR 2023: with logits x and T the temperature of the present ones,
    ℓ = softplus(log Σ_{n absent} exp(x_n) + T · log Σ_{p present} exp(−x_p / T)), averaged over the images that have a
    present class, plus the same averaged over the classes that have a present image.

    Args:
        scores, targets: as in `margin_loss`.
        temperature: T; the higher, the more evenly present pairs count.
        eps: without logits, those of the scores are taken, with logarithms of at least this.
        class_weights: [J] or [B, J], at least 0: each multiplies its pairs' terms inside the sums.
        logits: as in `length_cross_entropy`.
    """
    scores, is_present, is_absent = _prepare(scores, targets)
    if logits is not None:
        x = _prepare(logits, targets)[0]  # [B, J]
    else:
        x = scores.clamp_min(eps).log() - (1 - scores).clamp_min(eps).log()  # [B, J]
    weights = _weigh(torch.ones_like(x), class_weights)  # [B, J]
    counted = (is_present + is_absent) * weights > 0  # [B, J]
    present, absent = (is_present > 0) & counted, (is_present <= 0) & counted  # [B, J]
    log_weights = weights.clamp_min(torch.finfo(x.dtype).tiny).log()  # [B, J]
    of_present = (log_weights - x / temperature).masked_fill(~present, _NOTHING)  # [B, J]
    of_absent = (log_weights + x).masked_fill(~absent, _NOTHING)  # [B, J]
    total = x.sum() * 0  # with its gradient, should nothing be present
    for dim in (1, 0):  # within each image, within each class
        terms = softplus(of_absent.logsumexp(dim) + temperature * of_present.logsumexp(dim))  # [B] or [J]
        counts = present.any(dim)
        total = total + (terms * counts).sum() / counts.sum().clamp_min(1)
    return total


_NOTHING = -1e6  # the logarithm of a term that is not there; finite, so that a sum of nothing has a gradient of 0

LOSSES: dict[LossName, Callable[..., Tensor]] = {
    "margin": margin_loss,
    "bce": length_cross_entropy,
    "asl": asymmetric_loss,
    "spread": spread_loss,
    "two-way": two_way_loss,
}
"""The losses by the names that configurations use."""

TAKE_LOGITS = frozenset({"bce", "asl", "two-way"})
"""Names of those that take logits."""


def _prepare(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Check both; return scores, and 1 where the class is present, and where it is absent, [B, J] in float32 or wider.

    Both are 0 for an unknown label.
    """
    batch, classes = require_tensor("scores", scores, "B J")
    if not isinstance(targets, Tensor) or targets.shape != scores.shape:
        shape = list(targets.shape) if isinstance(targets, Tensor) else type(targets).__name__
        raise ValueError(f"targets: expected shape [B={batch}, J={classes}], got {shape}")
    wide = upcast(scores)
    if targets.dtype == torch.bool:
        present = targets.to(wide.dtype)  # [B, J]
        return wide, present, 1 - present
    unknown = is_unknown(targets)  # [B, J]
    targets = targets.masked_fill(unknown, 0)  # [B, J]
    require_between("targets", targets, 0, 1)
    present = targets.to(wide.dtype)  # [B, J]
    return wide, present, (1 - present).masked_fill(unknown, 0)


def _weigh(terms: Tensor, class_weights: Tensor | None) -> Tensor:
    """Multiply terms [B, J, …] by the weight of each class, or of each class in each image; check the weights."""
    if class_weights is None:
        return terms
    if isinstance(class_weights, Tensor) and class_weights.ndim == 2:
        require_tensor("class_weights", class_weights, "B J", B=terms.shape[0], J=terms.shape[1])
    else:
        require_tensor("class_weights", class_weights, "J", J=terms.shape[1])
    require_between("class_weights", class_weights, 0, torch.finfo(class_weights.dtype).max)
    weights = class_weights.to(terms)  # [(B,) J]
    return terms * weights.view(*weights.shape, *[1] * (terms.ndim - 2))


def _reduce(terms: Tensor) -> Tensor:
    """Sum over classes, mean over the batch."""
    return terms.sum(dim=1).mean()


def resolve_loss(name: str, network: ModelConfig) -> LossName:
    """Return the loss that a name means for a network: "auto" is margin for lengths, cross-entropy for sigmoids."""
    if name != "auto":
        return cast(LossName, name)
    return "bce" if network.scores_are_sigmoids else "margin"

"""Fit potentials between classes to labels alone: how much one class's presence raises another's logit.

logit_j = b_j + Σ_{j'≠j} W[j', j] · (label_j' − π_j'), with 0 for a label that is not known, is the pseudo-likelihood
fit of an Ising model (Besag 1975), trained on labels of which random ones are hidden.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contextcaps.capsules.group_potentials import Groups, group_messages
from contextcaps.capsules.guards import require_tensor

__all__ = [
    "LOGISTIC_RATE",
    "LabelGroups",
    "LabelLogistic",
    "LabelPotentials",
    "divide_labels",
    "fit_potentials",
    "fit_to_hidden_labels",
    "hidden_loss",
    "hide_labels",
    "label_prior",
    "prior_logits",
]

_BATCH = 512
_LEAST_STEPS, _MOST_STEPS = 600, 4000
_MOST_WORK = 2e13  # operations, so that thousands of classes, with fewer steps, take minutes on a CPU
LOGISTIC_RATE = 0.05  # log-odds ratios reach 5, and Adam moves a weight by the rate in each step
_VALIDATIONS = 20  # on the held-out labels, to keep the best weights


class LabelPotentials(NamedTuple):
    """Holds potentials between classes."""

    pairwise: Tensor
    """W, [J, J]."""
    groups: Groups | None
    """Potentials of higher order; None unless asked for."""


def fit_potentials(
    targets: Tensor,
    groups: int = 0,
    seed: int = 0,
    held_out: float = 0.1,
    device: torch.device | str = "cpu",
) -> LabelPotentials:
    """Fit potentials to training labels [n, J] of 0 and 1, or NaN where one is unknown.

    Args:
        targets: labels of the training part.
        groups: hidden units of the potentials of higher order; 0 for none.
        seed: seed of hidden labels and batches.
        held_out: share of the images that only choose the step to stop at.
        device: device to compute on.
    """
    fitting, judging, generator = divide_labels(targets, seed, held_out)
    judged = hide_labels(judging, generator)  # [m, J]
    logistic = LabelLogistic(label_prior(fitting)).to(device)
    fit_to_hidden_labels(logistic, fitting, judging, judged, generator, LOGISTIC_RATE)
    if not groups:
        return LabelPotentials(logistic.potentials.detach(), None)
    both = LabelGroups(logistic, groups, generator).to(device)
    fit_to_hidden_labels(both, fitting, judging, judged, generator)
    return LabelPotentials(logistic.potentials.detach(), Groups(*(each.detach() for each in both.units)))


def divide_labels(targets: Tensor, seed: int, held_out: float) -> tuple[Tensor, Tensor, torch.Generator]:
    """Shuffle labels [n, J] and divide them into a part to fit and one to validate; also return the generator."""
    require_tensor("targets", targets.float().nan_to_num(0.0), "n J")
    generator = torch.Generator().manual_seed(seed)
    labels = targets.float().cpu()[torch.randperm(len(targets), generator=generator)]  # [n, J]
    kept = max(1, len(labels) - math.ceil(held_out * len(labels)))
    return labels[:kept], labels[kept:] if kept < len(labels) else labels, generator


class LabelLogistic(nn.Module):
    """Maps known labels [n, J] (NaN: not known) to logits [n, J] by one linear layer between classes.

    Args:
        prior: π, [J].
    """

    def __init__(self, prior: Tensor) -> None:
        super().__init__()
        self.prior: Tensor
        self.register_buffer("prior", prior)
        self.weight = nn.Parameter(torch.zeros(len(prior), len(prior)))  # [J, J]
        self.bias = nn.Parameter(prior_logits(prior))  # [J]

    @property
    def potentials(self) -> Tensor:
        """Return W, [J, J], with zeros on the diagonal."""
        return self.weight - torch.diag(torch.diagonal(self.weight))

    def forward(self, known: Tensor) -> Tensor:
        return (known - self.prior).nan_to_num(0.0) @ self.potentials + self.bias  # [n, J]


class LabelGroups(nn.Module):
    """Adds hidden units, which start at zero, to `LabelLogistic`; maps known labels [n, J] to logits [n, J].

    Args:
        logistic: the potentials between pairs of classes; trained further.
        groups: h, hidden units.
        generator: draws the initial weights.
    """

    def __init__(self, logistic: LabelLogistic, groups: int, generator: torch.Generator) -> None:
        super().__init__()
        classes = len(logistic.prior)
        self.logistic = logistic
        self.inward = nn.Parameter(torch.empty(2 * classes, groups).normal_(std=classes**-0.5, generator=generator))
        self.inward_bias = nn.Parameter(torch.zeros(groups))  # [h]
        self.outward = nn.Parameter(torch.zeros(groups, classes))  # [h, J]

    @property
    def units(self) -> Groups:
        return Groups(self.inward, self.inward_bias, self.outward)

    def forward(self, known: Tensor) -> Tensor:
        given = ~known.isnan()  # [n, J]
        centred = (known - self.logistic.prior).nan_to_num(0.0)  # [n, J]
        return self.logistic(known) + group_messages(centred, given, self.units)  # [n, J]


def label_prior(labels: Tensor) -> Tensor:
    """Return the frequencies [J] of labels [n, J] among those that are known (not NaN); 0 where none is."""
    return labels.nanmean(dim=0).nan_to_num(0.0)


def prior_logits(prior: Tensor) -> Tensor:
    """Return the log-odds of frequencies [J]."""
    return torch.logit(prior, eps=1e-4)


def hide_labels(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Replace a share of each image's labels [n, J], drawn uniformly from 0 to 1, by NaN."""
    shares = torch.rand(len(labels), 1, generator=generator)  # [n, 1]
    hidden = torch.rand(labels.shape, generator=generator) < shares  # [n, J]
    return labels.masked_fill(hidden, torch.nan)


def hidden_loss(logits: Tensor, labels: Tensor, known: Tensor) -> float:
    """Return the mean cross-entropy of the hidden labels, without those that nobody knows."""
    hidden = known.isnan() & ~labels.isnan()  # [n, J]
    return float(F.binary_cross_entropy_with_logits(logits[hidden], labels[hidden])) if bool(hidden.any()) else math.inf


def fit_to_hidden_labels(
    predictor: nn.Module,
    fitting: Tensor,
    judging: Tensor,
    judged: Tensor,
    generator: torch.Generator,
    rate: float = 0.01,
) -> float:
    """Train a predictor on its device, restore its best step, and return the held-out loss there."""
    batch = min(_BATCH, len(fitting))
    steps = min(_MOST_STEPS, max(_LEAST_STEPS, 30 * len(fitting) // batch))
    steps = max(1, min(steps, int(_MOST_WORK / (6 * batch * fitting.shape[1] ** 2))))
    device = next(predictor.parameters()).device
    judging, judged = judging.to(device), judged.to(device)
    optimizer = torch.optim.AdamW(predictor.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    best, kept = math.inf, _weights(predictor)  # few held-out images may have no hidden label to validate on
    for step in range(steps):
        drawn = fitting[torch.randint(len(fitting), (batch,), generator=generator)]  # [b, J]
        labels, known = drawn.to(device), hide_labels(drawn, generator).to(device)  # [b, J]
        hidden = known.isnan() & ~labels.isnan()  # [b, J]
        terms = F.binary_cross_entropy_with_logits(predictor(known), labels.nan_to_num(0.0), reduction="none")  # [b, J]
        loss = (terms * hidden).sum() / batch
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % max(1, steps // _VALIDATIONS) == 0 or step + 1 == steps:
            with torch.no_grad():
                now = hidden_loss(predictor(judged), judging, judged)
            if now < best:
                best, kept = now, _weights(predictor)
    predictor.load_state_dict(kept)
    return best


def _weights(predictor: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in predictor.state_dict().items()}

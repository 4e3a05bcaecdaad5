"""Predict an image's labels from its other labels alone, without the image: the control for known labels.

Two predictors are fitted to the training labels with random ones hidden, and the better of them, on labels held out
from both, is the control:
- logistic: logit_j = b_j + Σ_{j'≠j} W[j', j] · (label_j' − π_j'), with 0 for what is not known: the pseudo-likelihood
  fit of an Ising model (Besag 1975), made for hidden labels;
- hidden layer: the same inputs, and which of them are known, through one layer of ReLUs, so that groups of classes
  can act together.
"""

import dataclasses

import torch
from torch import Tensor, nn

from contextcaps.evaluation.known.label_potentials import (
    LOGISTIC_RATE,
    LabelLogistic,
    divide_labels,
    fit_to_hidden_labels,
    hidden_loss,
    hide_labels,
    label_prior,
    prior_logits,
)

__all__ = ["Cooccurrence", "fit_cooccurrence"]

_HIDDEN = 256


@dataclasses.dataclass(frozen=True)
class Cooccurrence:
    """Predicts scores [n, J] from known labels [n, J] (NaN: not known)."""

    kind: str
    """Name of the better predictor."""
    module: nn.Module
    losses: dict[str, float]
    """Held-out cross-entropy per hidden label of each predictor, and of the constant prior."""

    @torch.no_grad()
    def __call__(self, known: Tensor) -> Tensor:
        return torch.cat([self.module(part).sigmoid() for part in known.float().split(4096)])  # [n, J]


def fit_cooccurrence(targets: Tensor, seed: int = 0, held_out: float = 0.1) -> Cooccurrence:
    """Fit the control to training labels [n, J] of 0 and 1, or NaN where one is unknown.

    Args:
        targets: labels of the training part.
        seed: seed of hidden labels, initial weights and batches.
        held_out: share of the images that only choose the step to stop at, and the predictor.
    """
    fitting, judging, generator = divide_labels(targets, seed, held_out)
    prior = label_prior(fitting)  # [J]
    judged = hide_labels(judging, generator)  # [m, J]
    predictors: dict[str, nn.Module] = {
        "logistic": LabelLogistic(prior),
        "hidden layer": _HiddenLayer(prior, generator),
    }
    losses = {"constant prior": hidden_loss(prior_logits(prior).expand_as(judging), judging, judged)}
    rates = {"logistic": LOGISTIC_RATE, "hidden layer": 0.01}
    for name, each in predictors.items():
        losses[name] = fit_to_hidden_labels(each, fitting, judging, judged, generator, rates[name])
    best = min(predictors, key=lambda name: losses[name])
    return Cooccurrence(best, predictors[best].eval(), losses)


class _HiddenLayer(nn.Module):
    def __init__(self, prior: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        classes = len(prior)
        self.prior: Tensor
        self.register_buffer("prior", prior)
        self.inward = nn.Linear(2 * classes, _HIDDEN)
        self.outward = nn.Linear(_HIDDEN, classes)
        with torch.no_grad():
            self.inward.weight.normal_(std=classes**-0.5, generator=generator)
            self.inward.bias.zero_()
            self.outward.weight.zero_()
            self.outward.bias.copy_(prior_logits(prior))

    def forward(self, known: Tensor) -> Tensor:
        centred = (known - self.prior).nan_to_num(0.0)  # [n, J]
        return self.outward(torch.relu(self.inward(torch.cat([centred, (~known.isnan()).float()], dim=1))))  # [n, J]

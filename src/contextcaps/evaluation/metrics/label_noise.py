"""Fit how often labels are wrong or missing, together with the calibration of the logits that judge them.

A class is there with the chance q = sigmoid(a · logit + b). A label says "present" of a share 1 − m of the classes that
are there (m are missing), and of a share w of those that are not (w are wrong). So it is "present" with the chance

    P(present | logit) = w + (1 − m − w) · q,

which is the four-parameter logistic of item response theory (Barton and Lord 1981): where the logit is highest it ends
below 1, where it is lowest above 0, and by how much says how often labels err. The four are fitted to the labels that
are judged, by their likelihood. By Bayes' rule an absent label is in error with the odds q · m / ((1 − q) · (1 − w)),
and a present one with the odds (1 − q) · w / (q · (1 − m)). Within either kind the order is that of the logits; the two
shares decide which kind comes first. Plain scores, and Platt scaling, take both kinds to be equally common.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from contextcaps.evaluation.metrics.platt_scaling import SCALES
from contextcaps.evaluation.metrics.streaming import Array, Pairs

__all__ = ["LabelNoise", "fit_label_noise"]

_BINS_PER_UNIT = 128
"""The likelihood is that of logits in bins so narrow, with as many steps for a billion labels as for a hundred."""
_BEFORE = (1.0, 100.0)
"""What is believed of each share before a label is seen: as if 1 of 100 had been in error."""
_MOST = 0.5
"""No share is above it: labels that are mostly wrong would be right of the opposite."""


class LabelNoise(NamedTuple):
    """The calibration of logits, and the shares of labels that are in error."""

    scale: float
    shift: float
    missing: float
    """Share of the classes that are there whose label says absent."""
    wrong: float
    """Share of the classes that are not there whose label says present."""

    def right(self, logits: Tensor, is_present: Tensor) -> Tensor:
        """Return the probability of each label to be right.

        Args:
            logits: any shape.
            is_present: of the same shape, what the labels say.
        """
        calibrated = self.scale * logits + self.shift
        as_absent = calibrated + float(np.log(self.missing) - np.log1p(-self.wrong))  # log odds of an error
        as_present = -calibrated + float(np.log(self.wrong) - np.log1p(-self.missing))
        return torch.sigmoid(-torch.where(is_present, as_present, as_absent))


def fit_label_noise(logits: Array, targets: Array) -> LabelNoise:
    """Fit the calibration and both shares by their likelihood.

    Args:
        logits: [n, J], finite; beyond ±20 they count as that.
        targets: [n, J], 0 or 1, or `UNKNOWN`.

    >>> random = torch.Generator().manual_seed(0)
    >>> logits = 6 * torch.randn(20_000, 5, generator=random) - 3
    >>> there = torch.rand(logits.shape, generator=random) < logits.sigmoid()
    >>> said = there & (torch.rand(logits.shape, generator=random) > 0.05)  # one in twenty is missing
    >>> noise = fit_label_noise(logits, said)
    >>> print(f"{noise.scale:.1f} {abs(noise.shift):.1f} {noise.missing:.2f} {noise.wrong:.2f}")
    1.0 0.0 0.05 0.00
    """
    centres, counts = _histogram(logits, targets)  # [m], [2, m]
    weights = torch.tensor([0.0, 0.0, -3.9, -3.9], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-13, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = _loss(weights, centres, counts) / max(1.0, float(counts.sum()))
        loss.backward()
        return loss

    optimizer.step(closure)
    return LabelNoise(*(float(each) for each in _values(weights.detach())))


def _values(weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scale, shift and both shares of four numbers without bounds."""
    return weights[0].exp().clamp(*SCALES), weights[1], *(_MOST * weights[2:].sigmoid())


def _loss(weights: Tensor, centres: Tensor, counts: Tensor) -> Tensor:
    """Return the negative log likelihood of labels counted by logit, and of what is believed before."""
    scale, shift, missing, wrong = _values(weights)
    there, not_there = logsigmoid(scale * centres + shift).exp(), logsigmoid(-scale * centres - shift).exp()  # [m]
    present = wrong * not_there + (1 - missing) * there  # [m]
    absent = (1 - wrong) * not_there + missing * there  # [m]
    likelihood = (counts[1] * present.log() + counts[0] * absent.log()).sum()
    errors, others = _BEFORE[0], _BEFORE[1] - _BEFORE[0]
    before = sum(errors * share.log() + others * (1 - share).log() for share in (missing, wrong))
    return ((scale - 1).square() + shift.square()) / 2 - likelihood - before


def _histogram(logits: Array, targets: Array) -> tuple[Tensor, Tensor]:
    """Return the middles of bins of logits [m], and how many labels of each are absent and present, [2, m]."""
    most = 20 * _BINS_PER_UNIT
    counts = torch.zeros(2, 2 * most + 1, dtype=torch.float64)
    pairs = Pairs(logits, targets)
    for _, part, truth in pairs.rows():
        known = pairs.labelled(part)  # [r, J]
        places = (part[known].double() * _BINS_PER_UNIT).round().clamp(-most, most).long() + most  # [p]
        for row, chosen in enumerate((~truth[known], truth[known])):
            counts[row] += torch.bincount(places[chosen], minlength=2 * most + 1).cpu()
    return torch.arange(-most, most + 1, dtype=torch.float64) / _BINS_PER_UNIT, counts

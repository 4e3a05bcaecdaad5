"""Fit how often labels are wrong or missing, together with the calibration of the logits that judge them.

A class is there with the chance q = sigmoid(a · logit + b). A label says "present" of a share 1 − m of the classes that
are there (m are missing), and of a share w of those that are not (w are wrong). So it is "present" with the chance

    P(present | logit) = w + (1 − m − w) · q,

which is the four-parameter logistic of item response theory (Barton and Lord 1981): where the logit is highest it ends
below 1, where it is lowest above 0, and by how much says how often labels err. The four are fitted to the labels that
are judged, by their likelihood. By Bayes' rule an absent label is in error with the odds q · m / ((1 − q) · (1 − w)),
and a present one with the odds (1 − q) · w / (q · (1 − m)). Within either kind the order is that of the logits; the two
shares decide which kind comes first. Plain scores, and Platt scaling, take both kinds to be equally common.

Where a model also has logits with all other labels told, the logit is a mixture of both, (1 − t) · logit + t · told,
and t is fitted as a fifth number: labels tell of each other, and mislead where they are in error themselves or the
model has learned little of them.

Last, each class has a shift of its own, the most probable one beside a normal distribution of variance 1 around 0: what
counts as a dining table is a matter of the annotators, and a model that learned from others is off for some classes.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from contextcaps.evaluation.metrics.platt_scaling import SCALES
from contextcaps.evaluation.metrics.streaming import Array, Pairs

__all__ = ["LabelNoise", "fit_label_noise"]

_BINS_PER_UNIT = (128, 16)
"""The likelihood is that of logits in bins so narrow, with as many steps for a billion labels as for a hundred; the
second where they are pairs of logits."""
_MOST_LOGIT = 20
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
    told: float = 0.0
    """Share that the logits with all other labels told have in the mixture."""
    class_shifts: tuple[float, ...] = ()
    """[J], what is added to each class's calibrated logit; empty for nothing."""

    def calibrated(self, logits: Tensor, told: Tensor | None = None) -> Tensor:
        """Return the calibrated mixture [n, J] of logits with nothing told and of those with all other labels told."""
        mixed = logits if told is None else (1 - self.told) * logits + self.told * told
        shifts = torch.tensor(self.class_shifts or (0.0,), dtype=logits.dtype, device=logits.device)
        return self.scale * mixed + self.shift + shifts

    def right(self, calibrated: Tensor, is_present: Tensor) -> Tensor:
        """Return the probability of each label to be right.

        Args:
            calibrated: logits that `calibrated` gave, of any shape.
            is_present: of the same shape, what the labels say.
        """
        as_absent = calibrated + float(np.log(self.missing) - np.log1p(-self.wrong))  # log odds of an error
        as_present = -calibrated + float(np.log(self.wrong) - np.log1p(-self.missing))
        return torch.sigmoid(-torch.where(is_present, as_present, as_absent))


def fit_label_noise(logits: Array, targets: Array, told: Array | None = None) -> LabelNoise:
    """Fit the calibration, both shares, and the mixture where there is one, by their likelihood; then classes' shifts.

    Args:
        logits: [n, J], finite; beyond ±20 they count as that.
        targets: [n, J], 0 or 1, or `UNKNOWN`.
        told: [n, J], logits with all other labels told.

    >>> random = torch.Generator().manual_seed(0)
    >>> logits = 6 * torch.randn(20_000, 5, generator=random) - 3
    >>> there = torch.rand(logits.shape, generator=random) < logits.sigmoid()
    >>> said = there & (torch.rand(logits.shape, generator=random) > 0.05)  # one in twenty is missing
    >>> noise = fit_label_noise(logits, said)
    >>> print(f"{noise.scale:.1f} {abs(noise.shift):.1f} {noise.missing:.2f} {noise.wrong:.2f}")
    1.0 0.0 0.05 0.00
    """
    kinds = [logits] if told is None else [logits, told]
    centres, counts = _histogram(kinds, targets)  # [S, m], [2, m]
    weights = torch.tensor([0.0, 0.0, -3.9, -3.9] + ([] if told is None else [0.0]), dtype=torch.float64)
    _minimise(weights, lambda: _loss(weights, centres, counts) / max(1.0, float(counts.sum())))
    scale, shift, missing, wrong, *mixture = (float(each) for each in _values(weights))
    noise = LabelNoise(scale, shift, missing, wrong, mixture[0] if mixture else 0.0)
    centre, by_class = _histogram_by_class(noise, kinds, targets)  # [m], [2, J, m]
    shifts = torch.zeros(by_class.shape[1], 1, dtype=torch.float64)  # [J, 1]

    def loss_of_shifts() -> Tensor:
        likelihood = _likelihood(centre + shifts, by_class, noise.missing, noise.wrong)
        return (shifts.square().sum() / 2 - likelihood) / max(1.0, float(counts.sum()))

    _minimise(shifts, loss_of_shifts)
    return noise._replace(class_shifts=tuple(shifts[:, 0].tolist()))


def _minimise(weights: Tensor, loss: Callable[[], Tensor]) -> None:
    """Change weights, which begin anywhere, to where a smooth loss is least."""
    weights.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-13, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    weights.requires_grad_(False)


def _values(weights: Tensor) -> tuple[Tensor, ...]:
    """Return scale, shift, both shares of errors, and the mixture's, of four or five numbers without bounds."""
    return weights[0].exp().clamp(*SCALES), weights[1], *(_MOST * weights[2:4].sigmoid()), *weights[4:].sigmoid()


def _loss(weights: Tensor, centres: Tensor, counts: Tensor) -> Tensor:
    """Return the negative log likelihood of labels counted by logits, and of what is believed before."""
    scale, shift, missing, wrong, *mixture = _values(weights)
    mixed = torch.lerp(centres[0], centres[1], mixture[0]) if mixture else centres[0]  # [m]
    likelihood = _likelihood(scale * mixed + shift, counts, missing, wrong)
    errors, others = _BEFORE[0], _BEFORE[1] - _BEFORE[0]
    before = sum(errors * share.log() + others * (1 - share).log() for share in (missing, wrong))
    return ((scale - 1).square() + shift.square() + weights[4:].square().sum()) / 2 - likelihood - before


def _likelihood(logits: Tensor, counts: Tensor, missing: Tensor | float, wrong: Tensor | float) -> Tensor:
    """Return the log likelihood of labels of calibrated logits [...], of which so many [2, ...] are absent, present."""
    there, not_there = logsigmoid(logits).exp(), logsigmoid(-logits).exp()
    present = wrong * not_there + (1 - missing) * there
    absent = (1 - wrong) * not_there + missing * there
    return (counts[1] * present.log() + counts[0] * absent.log()).sum()


def _histogram(kinds: Sequence[Array], targets: Array) -> tuple[Tensor, Tensor]:
    """Return the middles of bins of S kinds of logits [S, m], and how many labels of each are absent and present."""
    per_unit = _BINS_PER_UNIT[len(kinds) - 1]
    side = 2 * _MOST_LOGIT * per_unit + 1
    counts = torch.zeros(2, side ** len(kinds), dtype=torch.float64)
    for known, truth, parts in _pieces(kinds, targets):
        bins = torch.zeros_like(truth, dtype=torch.int64)  # [r, J]
        for part in parts:
            bins = side * bins + _bins(part, per_unit)
        for row, chosen in enumerate((known & ~truth, known & truth)):
            counts[row] += torch.bincount(bins[chosen], minlength=counts.shape[1]).cpu()
    filled = counts.sum(dim=0).nonzero()[:, 0]  # [m]
    places = torch.stack([filled // side**power % side for power in reversed(range(len(kinds)))])  # [S, m]
    return places.double() / per_unit - _MOST_LOGIT, counts[:, filled]


def _histogram_by_class(noise: LabelNoise, kinds: Sequence[Array], targets: Array) -> tuple[Tensor, Tensor]:
    """Return the middles of bins of calibrated logits [m], and each class's labels in them by what they say [2, J, m].

    The labels are absent in the first row and present in the second.
    """
    per_unit, classes = _BINS_PER_UNIT[-1], targets.shape[1]
    side = 2 * _MOST_LOGIT * per_unit + 1
    counts = torch.zeros(2, classes * side, dtype=torch.float64)
    for known, truth, parts in _pieces(kinds, targets):
        first = side * torch.arange(classes, device=truth.device)  # [J]
        bins = first + _bins(noise.calibrated(*(part.double() for part in parts)), per_unit)  # [r, J]
        for row, chosen in enumerate((known & ~truth, known & truth)):
            counts[row] += torch.bincount(bins[chosen], minlength=counts.shape[1]).cpu()
    middles = torch.arange(side, dtype=torch.float64) / per_unit - _MOST_LOGIT
    return middles, counts.unflatten(1, (classes, side))


def _pieces(kinds: Sequence[Array], targets: Array) -> Iterator[tuple[Tensor, Tensor, list[Tensor]]]:
    """Yield some images at a time: which labels are known, which present, and their logits of each kind, all [r, J]."""
    pairs = [Pairs(logits, targets) for logits in kinds]
    for pieces in zip(*(each.rows() for each in pairs), strict=True):
        known = pairs[0].labelled(pieces[0][1])  # [r, J]
        yield known, pieces[0][2], [part.masked_fill(~known, 0.0) for _, part, _ in pieces]


def _bins(logits: Tensor, per_unit: int) -> Tensor:
    """Return which bin each logit is in; the first and the last have all beyond."""
    middle = _MOST_LOGIT * per_unit
    return (logits.double() * per_unit).round().clamp(-middle, middle).long() + middle

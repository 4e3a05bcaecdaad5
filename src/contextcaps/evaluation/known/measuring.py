"""Measure what known labels are worth: mAP on the labels that were not given, beside two controls on the same pairs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from contextcaps.data.unknown import is_unknown
from contextcaps.evaluation.known.cooccurrence import Cooccurrence
from contextcaps.evaluation.known.revealing import draw_given, known_labels
from contextcaps.evaluation.metrics.bootstrap import basic_interval, bootstrap_counted_precision, default_resamples
from contextcaps.evaluation.metrics.ranking import average_precision
from contextcaps.evaluation.predictions import Predictions
from contextcaps.evaluation.report.evaluation import Estimate, plain

__all__ = [
    "KnownEvaluation",
    "KnownShare",
    "counted_average_precision",
    "give",
    "measure_known",
    "parse_shares",
    "require_share",
]


@dataclasses.dataclass(frozen=True)
class KnownShare:
    """Holds the figures at one share of known labels, from 0 to 1, all on the pairs of image and class not given."""

    share: float
    given: int
    """Labels given of each image; fewer where the data do not know some of them."""
    pairs: int
    """Pairs of image and class that were not given, and that the data know."""
    positives: int
    """Pairs of those that are present."""
    left_out: int
    """Classes without such a positive, left out of means over classes."""
    told: Estimate
    """mAP of the model with the given labels."""
    nothing: Estimate
    """mAP of the same model without them."""
    cooccurrence: Estimate
    """mAP of the predictor that has the given labels, and no image."""
    gain: Estimate
    """The first minus the second, on the same resamples."""
    lead: Estimate
    """The first minus the third, on the same resamples."""


@dataclasses.dataclass(frozen=True)
class KnownEvaluation:
    """Holds the evaluation of a model that is given shares of the labels."""

    shares: tuple[KnownShare, ...]
    images: int
    classes: int
    train_images: int
    """Images to whose labels the co-occurrence control was fitted."""
    cooccurrence: str
    """Name of the co-occurrence control's predictor."""
    cooccurrence_losses: dict[str, float]
    """Held-out cross-entropy of each predictor that was tried."""
    resamples: int
    seed: int
    """Seed of the given labels, the control, and the resampling."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dictionaries and numbers, for JSON."""
        return plain(dataclasses.asdict(self))


def parse_shares(text: str) -> tuple[float, ...]:
    """Parse shares such as "0.25,0.5,0.75", each above 0 and below 1, and sort them.

    >>> parse_shares("0.5, 0.25")
    (0.25, 0.5)
    """
    found = set()
    for word in text.split(","):
        try:
            share = float(word)
        except ValueError:
            share = -1.0
        if not 0 < share < 1:
            raise ValueError(f"known: expected shares of the labels between 0 and 1, such as 0.25,0.5, got {text!r}")
        found.add(share)
    return tuple(sorted(found))


def require_share(share: float, classes: int) -> None:
    """Raise unless a share of so many classes is at least one of them, and leaves one to be predicted."""
    given = round(share * classes)
    if not 0 < given < classes:
        raise ValueError(f"known: a share of {share} of {classes} classes is {given} of them; choose another share")


def give(predictions: Predictions, share: float, seed: int, order: Sequence[int] | None = None) -> Tensor:
    """Return a share of the true labels of each image, [n, J]; NaN elsewhere.

    Args:
        predictions: predictions with the images' indices and labels.
        share: share of the labels, between 0 and 1.
        seed: seed of the draw.
        order: index of each class in the data, if the model's classes have another order: labels are drawn in the
            data's order, so that all models are given the same.
    """
    classes = len(predictions.classes)
    require_share(share, classes)
    given = draw_given(predictions.indices, classes, share, seed)  # [n, J]
    return known_labels(predictions.targets, given if order is None else given[:, list(order)])


def measure_known(
    nothing: Predictions,
    told: Mapping[float, tuple[Tensor, Tensor]],
    control: Cooccurrence,
    train_images: int,
    *,
    resamples: int | None = None,
    seed: int = 0,
) -> KnownEvaluation:
    """Measure a model that is given shares of the labels.

    Args:
        nothing: its predictions without known labels.
        told: share → the labels given to it (`give`), and its scores with them; both [n, J], images as in `nothing`.
        control: fitted to the training labels, classes as in `nothing`.
        train_images: images to whose labels it was fitted.
        resamples: resamples of the bootstrap.
        seed: seed of the bootstrap, and of the given labels.
    """
    images, classes = nothing.targets.shape
    count = default_resamples(images, classes) if resamples is None else resamples
    measured = []
    for share, (known, with_known) in told.items():
        counted = known.isnan() & ~is_unknown(nothing.targets)  # [n, J]
        scores = {"told": with_known, "nothing": nothing.scores, "cooccurrence": control(known)}
        drawn = {
            name: bootstrap_counted_precision(each, nothing.targets, counted, resamples=count, seed=seed)
            for name, each in scores.items()
        }
        each = {name: counted_average_precision(those, nothing.targets, counted) for name, those in scores.items()}
        values = {name: float(precision.nanmean()) for name, precision in each.items()}
        measured.append(
            KnownShare(
                share=share,
                given=round(share * classes),
                pairs=int(counted.sum()),
                positives=int(nothing.targets[counted].sum()),
                left_out=int(each["told"].isnan().sum()),
                **{name: _estimate(values[name], drawn[name]) for name in scores},
                gain=_estimate(values["told"] - values["nothing"], drawn["told"] - drawn["nothing"]),
                lead=_estimate(values["told"] - values["cooccurrence"], drawn["told"] - drawn["cooccurrence"]),
            )
        )
    return KnownEvaluation(tuple(measured), images, classes, train_images, control.kind, control.losses, count, seed)


def counted_average_precision(scores: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
    """Compute the AP of each class [J] over the images that count for it, [n, J] bool; NaN without a positive."""
    each = [
        average_precision(scores[rows, None, column], targets[rows, None, column], None)
        for column, rows in enumerate(counted.T)
    ]
    return torch.cat(each)


def _estimate(value: float, drawn: Tensor) -> Estimate:
    return Estimate(value, *basic_interval(drawn, value))

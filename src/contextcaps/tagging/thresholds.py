"""Choose the thresholds to tag with: the model's own, given ones, or those that reach a precision or recall."""

import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple

from contextcaps.models.score_bands import ScoreBands
from contextcaps.tagging.known import place_of_class

__all__ = ["Asked", "choose_thresholds"]


class Asked(NamedTuple):
    """What a user asks for; at most one of the three."""

    threshold: float | Mapping[str, float] | None = None
    """A score for all classes, or class → score, where the other classes keep their own."""
    precision_at_least: float | None = None
    """Share of the tags of the validation images that was right."""
    recall_at_least: float | None = None
    """Share of the labels of the validation images that was found."""


def choose_thresholds(
    asked: Asked, classes: tuple[str, ...], own: tuple[float, ...], bands: ScoreBands
) -> tuple[float, ...]:
    """Return the threshold of each class [J].

    Args:
        asked: by the user.
        classes: [J], names of the model's classes.
        own: [J], the model's own thresholds.
        bands: what its scores were worth on validation images.

    Raises:
        TypeError: a threshold or a share is no number.
        ValueError: of an argument out of range, of two, and where the model does not know such a threshold.
    """
    given = {name: value for name, value in asked._asdict().items() if value is not None}
    if len(given) > 1:
        first, second, *_ = given
        raise ValueError(f"{second}: chooses thresholds as {first} does; expected one of them")
    if not given:
        return own
    if isinstance(asked.threshold, Mapping):
        thresholds = list(own)
        for name, value in asked.threshold.items():
            thresholds[place_of_class(name, classes, "threshold")] = _score_from(f"threshold: {name}", value)
        return tuple(thresholds)
    if asked.threshold is not None:
        return (_score_from("threshold", asked.threshold),) * len(classes)
    ((name, value),) = given.items()
    share = _share_from(name, value)
    if not bands.bands:
        raise ValueError(
            f"{name}: this model does not know what its scores were worth on validation images, as it was not trained "
            "by this version, or on too few of them; give a threshold instead, or train it again"
        )
    if asked.precision_at_least is not None:
        chosen, best = bands.threshold_of_precision(share), bands.best_precision()
    else:
        chosen, best = bands.threshold_of_recall(share), bands.best_recall()
    if chosen is None:
        raise ValueError(f"{name}: no threshold reached {share} on the validation images; the most was {best:.3f}")
    return (chosen,) * len(classes)


def _share_from(name: str, value: Any) -> float:
    wrong = f"{name}: expected a share above 0 and at most 1, such as 0.8, got {value!r}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(wrong)
    if not 0 < float(value) <= 1:
        raise ValueError(wrong)
    return float(value)


def _score_from(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: expected a score from 0 to 1, got {value!r}")
    score = float(value)
    if not 0 <= score <= 1:
        raise ValueError(f"{name}: expected a score from 0 to 1, got {value}")
    return score

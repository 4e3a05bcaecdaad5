"""Results of `Tagger.explain`: for each class the parts that its logit is the sum of, and what known labels moved."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from contextcaps.models.parts import LogitParts

__all__ = [
    "ClassExplanation",
    "Explanation",
    "LengthExplanation",
    "Move",
    "explanation_of",
    "mixed_explanation",
    "spread",
]

_OF_THE_IMAGE = ("capsule level", "decision bias")
"""Parts that depend on the image, but have no place in it."""
_LEAST_MOVE = 0.01
"""Scores that known labels change by less than this have not moved: two digits of them are shown."""
_DIGITS = 7
"""After the point, in documents for programs: hundreds of parts still sum to the logit to 1e-4."""


@dataclasses.dataclass(frozen=True, eq=False)
class LengthExplanation:
    """The length of a decision capsule before the squash, and the parts that it is the sum of."""

    length: float
    capsules: np.ndarray
    """[D, H, W], of each primary capsule by type and grid position."""
    bias: float


@dataclasses.dataclass(frozen=True, eq=False)
class ClassExplanation:
    """A class's logit, and the parts that it is the sum of."""

    name: str
    score: float
    """As in tagging; 1 or 0 where the label was given."""
    logit: float
    """What the parts sum to; of a class whose label was given, what the image and the other classes say of it."""
    threshold: float
    is_tag: bool
    given: bool | None
    """The label that was given; None for a class that is predicted."""
    evidence: np.ndarray
    """[D, H, W], float32: parts of the capsules by type and grid position; D = 1 for a head without capsules."""
    branch: np.ndarray | None
    """[H', W'], float32: parts of the global branch by position of the features; None without one."""
    messages: Mapping[str, float]
    """Other class → the part of its message; strongest first, empty without a field."""
    constants: Mapping[str, float]
    """All other parts by name: `capsule level`, `decision bias`, `head bias`, `field bias`, `groups`, `calibration`, as
    in `contextcaps.models.decomposition`."""
    length: LengthExplanation | None
    """None for a head without capsules."""

    @property
    def image(self) -> float:
        """What the image says: the head's logit, for a head of capsules with their level and bias, and the branch's."""
        branch = 0.0 if self.branch is None else float(self.branch.sum())
        return float(self.evidence.sum()) + branch + sum(self.constants.get(part, 0.0) for part in _OF_THE_IMAGE)

    @property
    def rest(self) -> float:
        """Biases, potentials of higher order, and calibration: all that is neither image nor message."""
        return sum(value for name, value in self.constants.items() if name not in _OF_THE_IMAGE)

    def total(self) -> float:
        """Return the sum of all parts, which is the logit but for rounding."""
        return self.image + sum(self.messages.values()) + self.rest

    def heat_map(self) -> np.ndarray:
        """Return the parts by position, [H, W]: all capsules of a cell, and the global branch.

        Where the two have different grids, each cell of either is divided evenly on the coarsest grid that both fit.
        """
        capsules = self.evidence.sum(axis=0)  # [H, W]
        if self.branch is None:
            return capsules
        shape = (
            math.lcm(capsules.shape[0], self.branch.shape[0]),
            math.lcm(capsules.shape[1], self.branch.shape[1]),
        )
        return spread(capsules, shape) + spread(self.branch, shape)

    def document(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        found: dict[str, Any] = {
            "name": self.name,
            "score": round(self.score, 6),
            "logit": round(self.logit, _DIGITS),
            "threshold": round(self.threshold, 6),
            "tag": self.is_tag,
        }
        if self.given is not None:
            found["given"] = self.given
        found["parts"] = {
            "evidence": _listed(self.evidence),
            "branch": None if self.branch is None else _listed(self.branch),
            "messages": {name: round(value, _DIGITS) for name, value in self.messages.items()},
            "constants": {name: round(value, _DIGITS) for name, value in self.constants.items()},
        }
        if self.length is not None:
            found["length"] = {
                "length": round(self.length.length, _DIGITS),
                "capsules": _listed(self.length.capsules),
                "bias": round(self.length.bias, _DIGITS),
            }
        return found


@dataclasses.dataclass(frozen=True)
class Move:
    """A score that known labels changed."""

    name: str
    before: float
    """The score where nothing is known."""
    after: float
    logit_change: float
    through: Mapping[str, float]
    """Other class → how much its message changed, strongest first; with `groups` their sum is the change."""
    groups: float = 0.0
    """What potentials of higher order have of the change."""

    def document(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        return {
            "name": self.name,
            "before": round(self.before, 6),
            "after": round(self.after, 6),
            "logit_change": round(self.logit_change, _DIGITS),
            "through": {name: round(value, _DIGITS) for name, value in self.through.items()},
            "groups": round(self.groups, _DIGITS),
        }


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The reasons for an image's tags."""

    image: str | int
    """Its path, or 0 if it has none."""
    classes: tuple[ClassExplanation, ...]
    """The tags, best first, then the other classes that were asked for."""
    given: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    """Known labels given to the model: class → whether it is present."""
    moves: tuple[Move, ...] = ()
    """Scores that they changed, the largest change first."""

    def document(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        found: dict[str, Any] = {"image": self.image, "classes": [each.document() for each in self.classes]}
        if self.given:
            found |= {"given": dict(self.given), "moves": [move.document() for move in self.moves]}
        return found


def explanation_of(
    image: str | int,
    found: LogitParts,
    plain: LogitParts | None,
    classes: tuple[str, ...],
    thresholds: Sequence[float],
    asked: Iterable[str],
    given: Mapping[str, bool],
) -> Explanation:
    """Make an explanation of the parts of one image's logits.

    Args:
        image: its name.
        found: of one image, with what is known.
        plain: the same with nothing known; None where nothing is.
        classes: [J], names.
        thresholds: [J].
        asked: names of classes to explain besides the tags.
        given: known labels.
    """
    scores = found.scores.tolist()
    order = sorted(range(len(classes)), key=lambda place: -scores[place])
    above = {place for place in order if given.get(classes[place], scores[place] >= thresholds[place])}
    # Without a tag there is something to ask all the same: why not even the best of them?
    wanted = {classes.index(name) for name in asked} or (set() if above else {order[0]})
    shown = [place for place in order if place in above] + [
        place for place in order if place in wanted and place not in above
    ]
    parts = tuple(
        _class_explanation(place, found, classes, thresholds[place], place in above, given) for place in shown
    )
    return Explanation(image, parts, dict(given), () if plain is None else _moves(found, plain, classes, given))


def mixed_explanation(*weighted: tuple[ClassExplanation, float], shift: float = 0.0) -> ClassExplanation:
    """Return the parts of Σ weight · logit + shift, for explanations of one class by the same network, and its sigmoid.

    The shift is added to the part `calibration`. All else is as in the last one.

    Args:
        weighted: explanations, such as with different labels known, with their weights.
        shift: what is added to the logit.
    """
    last = weighted[-1][0]
    logit = sum(weight * each.logit for each, weight in weighted) + shift
    messages = {name: sum(weight * each.messages[name] for each, weight in weighted) for name in last.messages}
    constants = {name: sum(weight * each.constants[name] for each, weight in weighted) for name in last.constants}
    constants["calibration"] = constants.get("calibration", 0.0) + shift
    branches = [weight * each.branch for each, weight in weighted if each.branch is not None]
    return dataclasses.replace(
        last,
        score=1 / (1 + math.exp(-logit)) if logit > 0 else math.exp(logit) / (1 + math.exp(logit)),
        logit=logit,
        evidence=np.stack([weight * each.evidence for each, weight in weighted]).sum(axis=0),
        branch=np.stack(branches).sum(axis=0) if branches else None,
        messages=dict(sorted(messages.items(), key=lambda item: -abs(item[1]))),
        constants=constants,
    )


def spread(cells: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Divide each cell of [H, W] evenly among those of a finer grid, whose sides are multiples; the sum stays.

    >>> spread(np.array([[4.0, 8.0]]), (2, 2))
    array([[2., 4.],
           [2., 4.]])
    """
    rows, columns = shape[0] // cells.shape[0], shape[1] // cells.shape[1]
    return np.repeat(np.repeat(cells, rows, axis=0), columns, axis=1) / (rows * columns)


def _class_explanation(
    place: int,
    found: LogitParts,
    classes: tuple[str, ...],
    threshold: float,
    is_tag: bool,
    given: Mapping[str, bool],
) -> ClassExplanation:
    name, length = classes[place], None
    if found.length is not None and found.length_capsules is not None and found.length_bias is not None:
        capsules = found.length_capsules[place]  # [D, H, W]
        length = LengthExplanation(float(found.length[place]), capsules, float(found.length_bias[place]))
    return ClassExplanation(
        name,
        float(found.scores[place]),
        float(found.logits[place]),
        threshold,
        is_tag,
        given.get(name),
        found.evidence[place],
        None if found.branch is None else found.branch[place],
        {} if found.messages is None else _strongest_first(found.messages[:, place], classes, place),
        {part: float(value[place]) for part, value in found.constants.items()},
        length,
    )


def _moves(
    found: LogitParts, plain: LogitParts, classes: tuple[str, ...], given: Mapping[str, bool]
) -> tuple[Move, ...]:
    assert found.messages is not None
    assert plain.messages is not None
    moves = []
    for place, name in enumerate(classes):
        before, after = float(plain.scores[place]), float(found.scores[place])
        if name in given or abs(after - before) < _LEAST_MOVE:
            continue
        through = _strongest_first(found.messages[:, place] - plain.messages[:, place], classes, place)
        change = float(found.logits[place] - plain.logits[place])
        groups = found.constants.get("groups")
        by_groups = 0.0 if groups is None else float((groups - plain.constants["groups"])[place])
        moves.append(Move(name, before, after, change, through, by_groups))
    return tuple(sorted(moves, key=lambda move: -abs(move.after - move.before)))


def _strongest_first(values: np.ndarray, classes: tuple[str, ...], own: int) -> dict[str, float]:
    """Return class → value, without the class itself."""
    numbers = values.tolist()
    order = sorted((place for place in range(len(classes)) if place != own), key=lambda place: -abs(numbers[place]))
    return {classes[place]: numbers[place] for place in order}


def _listed(values: np.ndarray) -> list[Any]:
    return np.round(values.astype(np.float64), _DIGITS).tolist()

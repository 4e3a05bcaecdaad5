"""Read the classes of `scenes`, and draw which of them appear together.

A scene is of one kind. The kind brings some classes always, and then makes independent choices, each among
alternatives that bring some classes together (or none). So given the kind y, with the choices c,

    P(a, b) = Σ_y P(y) P(a, b | y),    P(a, b | y) = Σ_{alternatives of c with a and b} P(alternative)   for one c,
                                       P(a | y) P(b | y)                                  for different choices,

which is exact: every class that is chosen is drawn, and drawn where it can be seen (see `source`).

The first choice of every kind is the light. All of this is written in world.yaml.
"""

import dataclasses
import importlib.resources
import itertools
from typing import Any

import numpy as np
import yaml

from contextcaps.data.sources.scenes.dice import fold_all

__all__ = ["CLASSES", "KINDS", "LOOK_OF", "MOST_COPIES", "TWINS", "Kind", "choose", "cooccurrence", "presence"]

_WORLD: dict[str, Any] = yaml.safe_load(
    (importlib.resources.files("contextcaps.data.sources.scenes") / "world.yaml").read_text(encoding="utf-8")
)

CLASSES: tuple[str, ...] = tuple(_WORLD["classes"])
TWINS: tuple[tuple[str, str], ...] = tuple((one, other) for one, other in _WORLD["twins"].values())
"""Pairs of classes drawn by the same function, with sizes, colours and turns from the same distribution."""
LOOK_OF: dict[str, str] = {name: name for name in CLASSES} | {
    name: look for look, twins in _WORLD["twins"].items() for name in twins
}
"""Class → look. (Parts of the room or the landscape need none: `backdrops` draws them.)"""
MOST_COPIES: dict[str, int] = dict.fromkeys(CLASSES, 1) | _WORLD["copies"]
"""Most copies of a class in one scene."""


@dataclasses.dataclass(frozen=True)
class Alternative:
    """Describes one outcome of a choice."""

    percent: int
    classes: tuple[str, ...] = ()
    light: str | None = None


Choice = tuple[Alternative, ...]
"""Alternatives whose percentages add up to 100."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """Describes a kind of scene."""

    name: str
    percent: int
    """Percentage of scenes that are of this kind."""
    always: tuple[str, ...]
    """Classes that every scene of this kind has."""
    choices: tuple[Choice, ...]
    """Independent choices; the first is the light. No class is in two of them."""


def _choice(percents: dict[str, int], light: str | None = None) -> Choice:
    """Return the choice written as classes ("ball + starfish", or "nothing"): percentage."""
    return tuple(
        Alternative(percent, () if names == "nothing" else tuple(names.split(" + ")), light)
        for names, percent in percents.items()
    )


def _kind(name: str, percent: int, always: list[str], light: str, choices: list[dict[str, int]]) -> Kind:
    lights = [_choice(percents, each) for each, percents in _WORLD["lights"][light].items()]
    others = [_choice({**choice, "nothing": 100 - sum(choice.values())}) for choice in choices]
    return Kind(name, percent, tuple(always), (tuple(itertools.chain(*lights)), *others))


KINDS = tuple(_kind(name, **described) for name, described in _WORLD["kinds"].items())

_INDEX = {name: index for index, name in enumerate(CLASSES)}


def choose(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw scenes' kinds and choices.

    Args:
        states: [n], uint64: each image's hash.

    Returns:
        The kinds [n] and the alternatives chosen [n, c], int64; columns beyond a kind's choices are 0.
    """
    columns = 1 + max(len(kind.choices) for kind in KINDS)
    dice = fold_all(states[:, None], np.arange(columns, dtype=np.uint64)[None])  # [n, 1 + c]
    percents = (dice % np.uint64(100)).astype(np.int64)
    kinds = np.searchsorted(np.cumsum([kind.percent for kind in KINDS]), percents[:, 0], side="right")  # [n]
    chosen = np.zeros((len(states), columns - 1), dtype=np.int64)
    for number, kind in enumerate(KINDS):
        rows = np.flatnonzero(kinds == number)
        for column, choice in enumerate(kind.choices):
            bounds = np.cumsum([alternative.percent for alternative in choice])
            chosen[rows, column] = np.searchsorted(bounds, percents[rows, column + 1], side="right")
    return kinds, chosen


def presence(kinds: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the classes [n, J], uint8, of the scenes that `choose` drew."""
    present = np.zeros((len(kinds), len(CLASSES)), dtype=np.uint8)
    for number, kind in enumerate(KINDS):
        rows = np.flatnonzero(kinds == number)
        present[np.ix_(rows, np.asarray([_INDEX[name] for name in kind.always]))] = 1
        for column, choice in enumerate(kind.choices):
            present[rows] |= _table(choice)[chosen[rows, column]]
    return present


def _table(choice: Choice) -> np.ndarray:
    """Return the classes [alternatives, J], uint8, that each alternative brings."""
    table = np.zeros((len(choice), len(CLASSES)), dtype=np.uint8)
    for row, alternative in enumerate(choice):
        table[row, [_INDEX[name] for name in alternative.classes]] = 1
    return table


def cooccurrence() -> tuple[np.ndarray, np.ndarray]:
    """Return the exact probabilities of each class [J] and of each two together [J, J] (the diagonal: each class)."""
    together = np.zeros((len(CLASSES), len(CLASSES)))
    for kind in KINDS:
        always = _table((Alternative(100, kind.always),))
        tables = [always, *(_table(choice) for choice in kind.choices)]
        weights = [[1.0], *([alternative.percent / 100 for alternative in choice] for choice in kind.choices)]
        marginals = [np.asarray(weight) @ table for weight, table in zip(weights, tables, strict=True)]  # [J] each
        whole = np.sum(marginals, axis=0)  # [J]; a class is in one choice only
        pairs = np.outer(whole, whole)
        for weight, table, marginal in zip(weights, tables, marginals, strict=True):
            pairs += table.T @ (np.asarray(weight)[:, None] * table) - np.outer(marginal, marginal)
        together += kind.percent / 100 * pairs
    return together.diagonal().copy(), together

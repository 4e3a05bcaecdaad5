"""Define the classes of `scenes`, and the probabilities with which they appear together.

A scene is of one kind. The kind brings some classes always, and then makes independent choices, each among
alternatives that bring some classes together (or none). So given the kind y, with the choices c,

    P(a, b) = Σ_y P(y) P(a, b | y),    P(a, b | y) = Σ_{alternatives of c with a and b} P(alternative)   for one c,
                                       P(a | y) P(b | y)                                  for different choices,

which is exact: every class that is chosen is drawn, and drawn where it can be seen (see `source`).

The first choice of every kind is the light. Its probabilities are the same everywhere, because twins (classes drawn
alike) must not be told apart by the light on them.
"""

import dataclasses

import numpy as np

from contextcaps.data.sources.scenes.dice import fold_all

__all__ = ["CLASSES", "KINDS", "TWINS", "Kind", "choose", "cooccurrence", "presence"]

# fmt: off
CLASSES = (
    "sky", "sea", "sand", "grass", "road", "snow", "mountain", "wall", "floor", "table",
    "sun", "moon", "lamp", "cloud", "house", "tree", "palm", "fir", "flower",
    "boat", "toy boat", "car", "toy car", "parasol", "umbrella", "starfish", "star", "ball", "orange",
    "person", "sheep", "goal", "blanket", "snowman", "bowl", "cup", "vase", "window", "towel",
    "cat", "sofa", "cushion", "gift", "bed", "teddy", "bathtub", "duck",
)
# fmt: on

TWINS = (
    ("moon", "lamp"),
    ("boat", "toy boat"),
    ("car", "toy car"),
    ("parasol", "umbrella"),
    ("starfish", "star"),
    ("ball", "orange"),
)
"""Pairs of classes drawn by the same function, with sizes, colours and turns from the same distribution."""


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


def _one_of(*alternatives: tuple[int, tuple[str, ...]]) -> Choice:
    """Return the choice of one of these, or of nothing with the percentage that is left."""
    rest = 100 - sum(percent for percent, _ in alternatives)
    return (*(Alternative(percent, classes) for percent, classes in alternatives), Alternative(rest))


def _maybe(percent: int, *classes: str) -> Choice:
    return _one_of((percent, classes))


_OUTDOOR_LIGHT = (
    Alternative(30, ("sun",), "day"),
    Alternative(20, (), "day"),
    Alternative(20, ("sun",), "dusk"),
    Alternative(5, (), "dusk"),
    Alternative(20, ("moon",), "night"),
    Alternative(5, (), "night"),
)
_INDOOR_LIGHT = (
    Alternative(50, (), "day"),
    Alternative(25, (), "dusk"),
    Alternative(20, ("lamp",), "night"),
    Alternative(5, (), "night"),
)

KINDS = (
    Kind(
        "coast",
        13,
        ("sky", "sea", "sand"),
        (
            _OUTDOOR_LIGHT,
            _maybe(60, "boat"),
            _one_of((35, ("parasol", "blanket")), (20, ("parasol",))),
            _one_of((20, ("ball",)), (30, ("starfish",)), (10, ("ball", "starfish"))),
            _maybe(35, "palm"),
            _maybe(40, "cloud"),
            _maybe(20, "mountain"),
        ),
    ),
    Kind(
        "street",
        13,
        ("sky", "road"),
        (
            _OUTDOOR_LIGHT,
            _maybe(85, "house"),
            _maybe(75, "car"),
            _one_of((40, ("umbrella", "person")), (20, ("person",))),
            _maybe(55, "tree"),
            _maybe(40, "cloud"),
        ),
    ),
    Kind(
        "meadow",
        14,
        ("sky", "grass"),
        (
            _OUTDOOR_LIGHT,
            _one_of((30, ("goal", "ball")), (30, ("blanket", "orange")), (5, ("goal",)), (5, ("blanket",))),
            _maybe(55, "tree"),
            _maybe(45, "flower"),
            _maybe(35, "sheep"),
            _maybe(40, "cloud"),
            _maybe(25, "house"),
            _maybe(20, "mountain"),
        ),
    ),
    Kind(
        "winter",
        10,
        ("sky", "snow"),
        (
            _OUTDOOR_LIGHT,
            _maybe(75, "mountain"),
            _maybe(75, "fir"),
            _maybe(45, "snowman"),
            _maybe(40, "house"),
            _maybe(30, "person"),
            _maybe(30, "cloud"),
        ),
    ),
    Kind(
        "kitchen",
        13,
        ("wall", "table"),
        (
            _INDOOR_LIGHT,
            _one_of((55, ("bowl", "orange")), (15, ("bowl",))),
            _maybe(60, "cup"),
            _maybe(50, "vase"),
            _maybe(50, "window"),
            _maybe(30, "cat"),
        ),
    ),
    Kind(
        "living room",
        13,
        ("wall", "floor", "sofa"),
        (
            _INDOOR_LIGHT,
            _maybe(65, "cushion"),
            _one_of((20, ("fir", "gift")), (15, ("fir", "gift", "toy car"))),
            _maybe(45, "window"),
            _maybe(40, "cat"),
            _maybe(30, "vase"),
        ),
    ),
    Kind(
        "nursery",
        12,
        ("wall", "floor"),
        (
            _INDOOR_LIGHT,
            _one_of((60, ("bed", "cushion")), (25, ("bed",))),
            _maybe(55, "toy car"),
            _maybe(55, "teddy"),
            _maybe(50, "star"),
            _maybe(25, "ball"),
            _maybe(35, "window"),
        ),
    ),
    Kind(
        "bathroom",
        12,
        ("wall", "floor", "bathtub"),
        (
            _INDOOR_LIGHT,
            _maybe(60, "toy boat"),
            _maybe(50, "duck"),
            _maybe(55, "towel"),
            _maybe(35, "window"),
        ),
    ),
)

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

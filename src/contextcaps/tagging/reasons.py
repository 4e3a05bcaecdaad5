"""Explanations in words and for a terminal: why a class has its score, and what known labels moved."""

import numpy as np
from rich.console import Console
from rich.text import Text

from contextcaps.documents import MISSING, printable
from contextcaps.tagging.explanation import ClassExplanation, Explanation, Move, spread

__all__ = [
    "describe_move",
    "describe_reasons",
    "describe_through",
    "print_reasons",
    "reasons_of",
    "signed_part",
    "strongest_region",
]

_NAMED = 3
"""Messages of other classes that a sentence names at most."""
_LEAST = 0.05
"""Parts that are smaller than this, 0.0 when rounded, are in `the rest`."""
_NINTHS = (
    ("upper left", "at the top", "upper right"),
    ("on the left", "in the middle", "on the right"),
    ("lower left", "at the bottom", "lower right"),
)
_MOVES = 12
"""Moves that a terminal shows at most."""
_MOSTLY, _EVENLY = 0.5, 0.2
"""Shares of all that speaks for a class: from the first on one ninth of the image has most of it; below the second none
stands out, 0.11 being even."""


def strongest_region(cells: np.ndarray) -> str:
    """Say in which ninth of the image the positive parts [H, W] are; an empty text where there are none.

    >>> strongest_region(np.array([[3.0, 0.0], [0.0, -1.0]])), strongest_region(np.ones((7, 7)))
    ('strongest upper left', 'all over')
    """
    positive = np.maximum(cells, 0)  # [H, W]
    if not positive.sum() > 0:
        return ""
    height, width = positive.shape
    fine = spread(positive, (3 * height, 3 * width))
    ninths = fine.reshape(3, height, 3, width).sum(axis=(1, 3)) / positive.sum()  # [3, 3]
    row, column = np.unravel_index(ninths.argmax(), ninths.shape)
    share = ninths[row, column]
    if share < _EVENLY:
        return "all over"
    return f"{'mostly' if share >= _MOSTLY else 'strongest'} {_NINTHS[row][column]}"


def reasons_of(explained: ClassExplanation) -> list[tuple[str, float]]:
    """Return the parts that a sentence names, and the rest; they sum to the logit."""
    named = [(name, value) for name, value in explained.messages.items() if abs(value) >= _LEAST][:_NAMED]
    left = explained.logit - explained.image - sum(value for _, value in named)
    rest = [("the rest", left)] if abs(left) >= _LEAST else []
    return [("the image", explained.image), *named, *rest]


def describe_reasons(explained: ClassExplanation) -> str:
    """Say why a class has its score, in one line.

    Such as: oven 0.91: the image +2.1 (mostly upper left), microwave +0.8, refrigerator +0.4, the rest −0.2
    """
    return f"{_standing(explained)}: {_reasons(explained)}"


def _reasons(explained: ClassExplanation) -> str:
    """List the parts that a sentence names, and where in the image the first one is strongest."""
    where = strongest_region(explained.heat_map()) if explained.image > 0 else ""
    parts = [
        f"{name} {signed_part(value)}" + (f" ({where})" if place == 0 and where else "")
        for place, (name, value) in enumerate(reasons_of(explained))
    ]
    return ", ".join(parts)


def describe_move(move: Move) -> str:
    """Say how known labels changed a score, and through which classes.

    Such as: sink 0.12 → 0.35: oven +1.1, refrigerator +0.1
    """
    return f"{move.name} {move.before:.2f} → {move.after:.2f}: {describe_through(move)}"


def describe_through(move: Move) -> str:
    """Say through which classes known labels changed a score, such as: oven +1.1, refrigerator +0.1"""
    through = [f"{name} {signed_part(value)}" for name, value in move.through.items() if abs(value) >= _LEAST][:_NAMED]
    through += [f"several together {signed_part(move.groups)}"] if abs(move.groups) >= _LEAST else []
    return ", ".join(through) or MISSING


def signed_part(value: float) -> str:
    """Return a part of a logit with its sign and one digit.

    >>> signed_part(2.14), signed_part(-0.06)
    ('+2.1', '−0.1')
    """
    return f"{value:+.1f}".replace("-", "−")


def print_reasons(explanation: Explanation, console: Console | None = None) -> None:
    """Print an explanation for a person; on standard output by default."""
    console = Console(highlight=False) if console is None else console
    lines = [Text(printable(str(explanation.image)), style="bold")]
    if not any(each.is_tag for each in explanation.classes):
        lines.append(Text("  no tag", style="dim"))
    for each in explanation.classes:
        line = Text(f"  {printable(_standing(each))}", style="cyan" if each.is_tag else "dim")
        lines.append(line.append(f": {printable(_reasons(each))}", style="default"))
    if explanation.given:
        given = ", ".join(f"{name}={'yes' if there else 'no'}" for name, there in explanation.given.items())
        lines.append(Text(printable(f"what {given} moves"), style="bold"))
        lines += [Text(f"  {printable(describe_move(move))}") for move in explanation.moves[:_MOVES]]
        more = len(explanation.moves) - _MOVES
        if more > 0 or not explanation.moves:
            lines.append(Text(f"  {more} more" if more > 0 else "  nothing by 0.01 or more", style="dim"))
    for line in lines:
        console.print(line, soft_wrap=True)


def _standing(explained: ClassExplanation) -> str:
    """Return a class's name with its score, and why that is no tag."""
    if explained.given is not None:
        return f"{explained.name} given as {'present' if explained.given else 'absent'}"
    below = "" if explained.is_tag else f", below {explained.threshold:.2f}"
    return f"{explained.name} {explained.score:.2f}{below}"

"""The differences to the baseline as a drawing: a dot and its interval for each, over seeds and over images."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from contextcaps.documents import shortened, signed
from contextcaps.documents.drawing import Drawing
from contextcaps.evaluation.report.evaluation import Estimate

__all__ = ["Difference", "Differences", "draw_differences"]

_WIDTH, _LEFT, _STEP = 680, 210, 26
_NAME_LENGTH = 22  # longer ones are cut off


class Difference(NamedTuple):
    """A line of the drawing."""

    label: str
    kind: Literal["seeds", "images"]
    """What the interval is over."""
    estimate: Estimate
    """As a share; the drawing has points."""


class Differences(NamedTuple):
    """The drawing and a sentence to stand below it."""

    drawing: Drawing
    words: str


def draw_differences(rows: Sequence[Difference], baseline: str) -> Differences:
    """Draw differences; one far beyond the others does not set the scale and is written as a number."""
    lowest, highest = _scale(rows)
    scale = (_WIDTH - _LEFT - 20) / (highest - lowest)
    zero = _LEFT - lowest * scale
    height = _STEP * len(rows) + 34
    drawing = Drawing(_WIDTH, height, "Differences to the baseline with intervals")
    drawing.line("axis", zero, 4, zero, height - 30)
    cut = False
    for index, (name, kind, estimate) in enumerate(rows):
        y = 16 + index * _STEP
        value, low, high = (100 * each for each in dataclasses.astuple(estimate))
        start, end = (max(lowest, min(highest, each)) for each in (low, high))
        if low == low and start < end:
            drawing.line(kind, zero + start * scale, y, zero + end * scale, y)
        for beyond, edge, sign in ((low < lowest, lowest, -1), (high > highest, highest, 1)):
            if beyond:
                cut = True
                x = zero + edge * scale
                drawing.add("path", style_class=kind, d=f"M{x:.1f} {y - 5}l{sign * 7} 5l{-sign * 7} 5z")
        if lowest <= value <= highest:
            drawing.add("circle", style_class=kind, cx=zero + value * scale, cy=y, r=5)
        elif value == value:
            x, anchor = (_LEFT + 8, "start") if value < 0 else (_WIDTH - 28, "end")
            drawing.write("tick", x, y + 4, signed(estimate.value), anchor)
        drawing.write("row", _LEFT - 12, y + 4, f"{shortened(name, _NAME_LENGTH)}, {kind}", "end")
    reach = max(-lowest, highest)
    drawing.write("tick", zero, height - 12, baseline, "middle")
    for each, anchor in ((lowest, "start"), (highest, "end")):
        if abs(each) > reach / 4:
            drawing.write("tick", zero + each * scale, height - 12, signed(each / 100), anchor)
    over = "over seeds and over test images" if any(row.kind == "seeds" for row in rows) else "over test images"
    words = f"Difference of mAP to {baseline} in points, 95 % intervals {over}."
    return Differences(drawing, words + (" Arrowheads: it goes on." if cut else ""))


def _scale(rows: Sequence[Difference]) -> tuple[float, float]:
    """Return the least and the greatest number of points with a place in the drawing."""
    values = [abs(100 * row.estimate.value) for row in rows if row.estimate.value == row.estimate.value]
    # A model that learns nothing is as far off as there is: where it set the scale, the others would lie on each other.
    bound = max(3.0, 6 * statistics.median(values)) if values else 3.0
    near = [row for row in rows if not abs(100 * row.estimate.value) > bound]
    ends = [100 * end for row in near for end in dataclasses.astuple(row.estimate) if end == end]
    # An interval over two seeds can be as wide as the world: it is cut off where it leaves three times the others.
    sizes = [abs(100 * row.estimate.value) for row in near]
    sizes += [abs(100 * end) for row in near if row.kind == "images" for end in (row.estimate.low, row.estimate.high)]
    widest = 3 * max([size for size in sizes if size == size] + [0.5])
    reach = max(0.1, min(max(map(abs, ends), default=1.0), widest))
    # No room for the side on which there is nothing, but for its beginning.
    return max(-reach, min([*ends, -reach / 8])), min(reach, max([*ends, reach / 8]))

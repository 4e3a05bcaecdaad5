"""Drawings of an `Inspection` for its page: labels per image, class frequencies, and which classes go together."""

import math
from collections.abc import Sequence

import numpy as np

from contextcaps.data.inspection.statistics import Inspection
from contextcaps.documents import counted, percent, shortened
from contextcaps.documents.drawing import Drawing

__all__ = ["HEAT_MAP_CLASSES", "class_frequencies", "heat_map", "heat_map_legend", "label_histogram"]

HEAT_MAP_CLASSES = 40
"""The heat map has room for this many classes."""
_STRONGEST = 3.0
"""log₂ of the lift at which the heat map's colours end: eight times, or an eighth."""
_LEAST_EXPECTED = 5
"""Pairs that chance alone would bring less often than this say little: the usual rule of thumb for tables of counts."""
_NAME_LENGTH = 18
"""Longer names are cut off on axes."""
_NAMED_BARS = 100
"""Up to this many classes, each bar carries its name."""


def label_histogram(inspection: Inspection) -> Drawing:
    """Draw the images by their number of labels."""
    counts, mean = inspection.labels_per_image, inspection.label_statistics()["mean"]
    width, height, left, bottom, top = 560, 250, 64, 46, 14
    ticks = _round_ticks(int(counts.max()))
    step = (width - left - 10) / len(counts)
    scale = (height - top - bottom) / ticks[-1]
    base = height - bottom
    drawing = Drawing(width, height, "Histogram of the number of labels per image")
    _draw_grid(drawing, [(base - tick * scale, f"{tick:,}") for tick in ticks], left, width - 10)
    every = math.ceil(len(counts) / 24)
    for labels, count in enumerate(counts.tolist()):
        x = left + labels * step
        tip = f"{counted(labels, 'label')}: {counted(count, 'image')} ({percent(count / inspection.count)} %)"
        drawing.rectangle("bar", x + step * 0.1, base - count * scale, step * 0.8, count * scale, tip=tip)
        if labels % every == 0:
            drawing.write("tick", x + step / 2, base + 17, str(labels), "middle")
    middle = left + (mean + 0.5) * step
    drawing.line("mean", middle, top, middle, base)
    drawing.write("tick", middle + 6, top + 10, f"mean {mean:.2f}")
    drawing.write("axis", (left + width) / 2, height - 6, "labels per image", "middle")
    drawing.write("axis", 14, (top + base) / 2, "images", "middle", turned=True)
    return drawing


def class_frequencies(inspection: Inspection) -> Drawing:
    """Draw the images of each class, the commonest first, on a logarithmic scale so that the long tail can be read."""
    order = inspection.by_frequency()
    named = len(order) <= _NAMED_BARS
    step = (1160 - 64) / len(order)
    size = min(12.0, max(7.5, step * 0.85))  # of the names under the bars
    width, left, top, bottom = 1160, 64, 10, round(14 + 0.56 * size * _longest(inspection.classes)) if named else 46
    height = 230 + top + bottom
    base = height - bottom
    highest = math.log10(max(int(inspection.class_counts.max()), 10))
    scale = 230 / (highest + 0.3)  # the axis begins at a half, so that one image still shows

    def level(count: float) -> float:
        return base - (math.log10(count) + 0.3) * scale

    drawing = Drawing(width, height, "Number of images of each class, on a logarithmic scale")
    powers = [10**each for each in range(math.floor(highest) + 1)]
    _draw_grid(drawing, [(level(each), f"{each:,}") for each in powers], left, width)
    shares = inspection.shares()
    for rank, index in enumerate(order):
        count, name = int(inspection.class_counts[index]), inspection.classes[index]
        x = left + rank * step
        tip = f"{name}: {counted(count, 'image')} ({percent(shares[index], 2)} %), rank {rank + 1}"
        if count:
            gap = min(step * 0.15, 3)
            drawing.rectangle("bar", x + gap / 2, level(count), step - gap, base - level(count), tip=tip)
        if named:
            place, short = x + step / 2 + size * 0.35, shortened(name, _NAME_LENGTH)
            drawing.write("name", place, base + 7, short, "end", turned=True, tip=tip, style=f"font-size:{size:.1f}px")
        elif (rank + 1) % 50 == 0 or rank == 0:
            drawing.write("tick", x + step / 2, base + 17, str(rank + 1), "middle")
    if not named:
        drawing.write("axis", (left + width) / 2, height - 6, "rank of the class", "middle")
    drawing.write("axis", 14, (top + base) / 2, "images (log scale)", "middle", turned=True)
    return drawing


def heat_map(inspection: Inspection) -> Drawing:
    """Draw the lift of every pair of the commonest classes, with classes that go together side by side."""
    chosen = inspection.by_frequency()[:HEAT_MAP_CLASSES]
    chosen = chosen[inspection.class_counts[chosen] > 0]
    places = np.searchsorted(inspection.commonest, chosen)
    met = inspection.together[np.ix_(places, places)]
    expected = inspection.expected[np.ix_(places, places)]
    lift = np.divide(met, expected, out=np.ones_like(expected), where=expected > 0)
    order = _side_by_side(lift)
    chosen = chosen[order]
    met, expected, lift = (each[np.ix_(order, order)] for each in (met, expected, lift))
    names = [inspection.classes[index] for index in chosen]

    side = 16.0 if len(names) > 20 else min(32.0, 320 / max(len(names), 1))
    margin = 12 + 6.4 * _longest(names)
    extent = margin + side * len(names)
    drawing = Drawing(extent + 2, extent + 2, "Heat map of the lift of pairs of classes")
    for row, name in enumerate(names):
        at = margin + (row + 0.5) * side + 4
        short, tip = shortened(name, _NAME_LENGTH), f"{name}: {counted(int(met[row, row]), 'image')}"
        drawing.write("name", margin - 5, at, short, "end", tip=tip)
        drawing.write("name", at, margin - 5, short, turned=True, tip=tip)
    for row, column in np.ndindex(*lift.shape):
        place = (margin + column * side, margin + row * side, side - 1, side - 1)
        if row == column:
            drawing.rectangle("self", *place)
            continue
        tip = (
            f"{names[row]} and {names[column]}: {counted(int(met[row, column]), 'image')}, "
            f"{expected[row, column]:,.1f} by chance, lift {lift[row, column]:.2f}"
        )
        few = expected[row, column] < _LEAST_EXPECTED and met[row, column] < inspection.least_support
        style, opacity = ("unknown", 1.0) if few else _paint(float(lift[row, column]))
        drawing.rectangle(style, *place, fill_opacity=opacity, tip=tip)
    return drawing


def heat_map_legend() -> Drawing:
    """Draw the heat map's colours and what they mean."""
    width, side = 58, 16
    drawing = Drawing(7 * width + 150, 42, "Legend of the heat map")
    for position, words in enumerate(("≤ ⅛ ×", "¼ ×", "½ ×", "1 ×", "2 ×", "4 ×", "≥ 8 ×")):
        style, opacity = _paint(2.0 ** (position - 3))
        drawing.rectangle("ground", position * width, 2, width, side)
        drawing.rectangle(style, position * width, 2, width, side, fill_opacity=opacity)
        drawing.write("tick", (position + 0.5) * width, 34, words, "middle")
    drawing.rectangle("unknown", 7 * width + 67, 2, side, side)
    drawing.write("tick", 7 * width + 75, 34, "too few to say", "middle")
    return drawing


def _paint(lift: float) -> tuple[str, float]:
    """Return the style and opacity of a heat map cell."""
    strength = max(-_STRONGEST, min(_STRONGEST, math.log2(lift))) if lift > 0 else -_STRONGEST
    return "close" if strength > 0 else "apart", abs(strength) / _STRONGEST


def _side_by_side(lift: np.ndarray) -> np.ndarray:
    """Return an order in which classes of high lift are neighbours: the Laplacian's second eigenvector's (Fiedler)."""
    affinity = np.log2(np.clip(lift, 1, 32)) + 1e-3
    np.fill_diagonal(affinity, 0)
    degree = affinity.sum(axis=1)
    if len(lift) < 3:
        return np.arange(len(lift))
    laplacian = np.eye(len(lift)) - affinity / np.sqrt(np.outer(degree, degree))
    place = np.linalg.eigh(laplacian)[1][:, 1] / np.sqrt(degree)
    return np.argsort(place if place[0] <= np.median(place) else -place, kind="stable")


def _longest(names: Sequence[str]) -> int:
    """Return the characters of the longest name, as far as it is shown."""
    return min(_NAME_LENGTH, max(len(name) for name in names))


def _round_ticks(highest: int) -> list[int]:
    """Return four to six round numbers from 0 to at least `highest`."""
    raw = max(highest, 1) / 5
    power = 10 ** math.floor(math.log10(max(raw, 1)))
    step = next(int(factor * power) for factor in (1, 2, 5, 10) if factor * power >= raw)
    return list(range(0, highest + step, step))


def _draw_grid(drawing: Drawing, ticks: Sequence[tuple[float, str]], left: float, right: float) -> None:
    for y, words in ticks:
        drawing.line("grid", left, y, right, y)
        drawing.write("tick", left - 7, y + 4, words, "end")

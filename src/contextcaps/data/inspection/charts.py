"""Charts of an `Inspection` as SVG for `inspection_page`: colours come from the page's style sheet, light or dark."""

import html
import math
from collections.abc import Iterator, Sequence

import numpy as np

from contextcaps.data.inspection.statistics import Inspection, printable

__all__ = ["HEAT_MAP_CLASSES", "class_frequencies", "heat_map", "heat_map_legend", "label_histogram", "shown"]

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


def shown(text: str, most: int | None = None) -> str:
    """Text from data, safe in HTML and SVG, shortened to `most` characters."""
    text = printable(text)
    if most is not None and len(text) > most:
        text = text[: most - 1] + "…"
    return html.escape(text, quote=True)


def label_histogram(inspection: Inspection) -> str:
    """Images by their number of labels."""
    counts = inspection.labels_per_image
    width, height, left, bottom, top = 560, 250, 64, 46, 14
    ticks = _round_ticks(int(counts.max()))
    step = (width - left - 10) / len(counts)
    scale = (height - top - bottom) / ticks[-1]
    base = height - bottom
    parts = [_svg(width, height, "Histogram of the number of labels per image")]
    parts += _horizontal_grid([(base - tick * scale, f"{tick:,}") for tick in ticks], left, width - 10)
    every = math.ceil(len(counts) / 24)
    for labels, count in enumerate(counts):
        x = left + labels * step
        share = 100 * count / inspection.count
        tip = f"{labels} label{'s' * (labels != 1)}: {count:,} images ({share:.1f} %)"
        parts.append(_bar(x + step * 0.1, base - count * scale, step * 0.8, count * scale, tip))
        if labels % every == 0:
            parts.append(
                f'<text class="tick" x="{x + step / 2:.1f}" y="{base + 17}" text-anchor="middle">{labels}</text>'
            )
    mean = left + (inspection.label_statistics()["mean"] + 0.5) * step
    parts.append(f'<line class="mean" x1="{mean:.1f}" y1="{top}" x2="{mean:.1f}" y2="{base}"/>')
    parts.append(
        f'<text class="tick" x="{mean + 6:.1f}" y="{top + 10}">mean {inspection.label_statistics()["mean"]:.2f}</text>'
    )
    parts.append(_axis_title((left + width) / 2, height - 6, "labels per image"))
    parts.append(_axis_title(14, (top + base) / 2, "images", upright=True))
    return "".join(parts) + "</svg>"


def class_frequencies(inspection: Inspection) -> str:
    """Images of each class, the commonest first, on a logarithmic scale so that the long tail can be read."""
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

    parts = [_svg(width, height, "Number of images of each class, on a logarithmic scale")]
    parts += _horizontal_grid(
        [(level(10**each), f"{10**each:,}") for each in range(math.floor(highest) + 1)], left, width
    )
    for rank, index in enumerate(order):
        count = int(inspection.class_counts[index])
        name = inspection.classes[index]
        x = left + rank * step
        tip = f"{printable(name)}: {count:,} images ({100 * count / inspection.count:.2f} %), rank {rank + 1}"
        if count:
            gap = min(step * 0.15, 3)
            parts.append(_bar(x + gap / 2, level(count), step - gap, base - level(count), tip))
        if named:
            parts.append(
                f'<text class="name" style="font-size:{size:.1f}px" text-anchor="end" '
                f'transform="translate({x + step / 2 + size * 0.35:.1f} {base + 7}) rotate(-90)">'
                f"{shown(name, _NAME_LENGTH)}<title>{html.escape(tip)}</title></text>"
            )
        elif (rank + 1) % 50 == 0 or rank == 0:
            parts.append(
                f'<text class="tick" x="{x + step / 2:.1f}" y="{base + 17}" text-anchor="middle">{rank + 1}</text>'
            )
    if not named:
        parts.append(_axis_title((left + width) / 2, height - 6, "rank of the class"))
    parts.append(_axis_title(14, (top + base) / 2, "images (log scale)", upright=True))
    return "".join(parts) + "</svg>"


def heat_map(inspection: Inspection) -> str:
    """Lift of every pair of the commonest classes, with classes that go together side by side."""
    chosen = inspection.by_frequency()[:HEAT_MAP_CLASSES]
    chosen = chosen[inspection.class_counts[chosen] > 0]
    met = inspection.together[np.ix_(chosen, chosen)]
    counts = inspection.class_counts[chosen].astype(np.float64)
    expected = np.outer(counts, counts) / inspection.count
    lift = met / expected
    order = _side_by_side(lift)
    chosen = chosen[order]
    met, expected, lift = (each[np.ix_(order, order)] for each in (met, expected, lift))
    names = [inspection.classes[index] for index in chosen]

    side = 16.0 if len(names) > 20 else min(32.0, 320 / max(len(names), 1))
    margin = 12 + 6.4 * _longest(names)
    extent = margin + side * len(names)
    parts = [_svg(extent + 2, extent + 2, "Heat map of the lift of pairs of classes")]
    for row, name in enumerate(names):
        at = margin + (row + 0.5) * side
        text = (
            f"{shown(name, _NAME_LENGTH)}<title>{shown(name)}: {inspection.class_counts[chosen[row]]:,} images</title>"
        )
        parts.append(f'<text class="name" x="{margin - 5:.1f}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
        parts.append(
            f'<text class="name" transform="translate({at + 4:.1f} {margin - 5:.1f}) rotate(-90)">{text}</text>'
        )
    for row, column in np.ndindex(*lift.shape):
        place = f'x="{margin + column * side:.1f}" y="{margin + row * side:.1f}" '
        place += f'width="{side - 1:.1f}" height="{side - 1:.1f}"'
        if row == column:
            parts.append(f'<rect class="self" {place}/>')
            continue
        paint = _paint(float(lift[row, column]))
        if expected[row, column] < _LEAST_EXPECTED and met[row, column] < inspection.least_support:
            paint = 'class="unknown"'
        tip = (
            f"{shown(names[row])} and {shown(names[column])}: {met[row, column]:,} images, "
            f"{expected[row, column]:,.1f} by chance, lift {lift[row, column]:.2f}"
        )
        parts.append(f"<rect {paint} {place}><title>{tip}</title></rect>")
    return "".join(parts) + "</svg>"


def heat_map_legend() -> str:
    """The heat map's colours and what they mean."""
    width, side = 58, 16
    parts = [_svg(7 * width + 150, 42, "Legend of the heat map")]
    for position, words in enumerate(("≤ ⅛ ×", "¼ ×", "½ ×", "1 ×", "2 ×", "4 ×", "≥ 8 ×")):
        x = position * width
        parts.append(f'<rect class="ground" x="{x}" y="2" width="{width}" height="{side}"/>')
        parts.append(f'<rect {_paint(2.0 ** (position - 3))} x="{x}" y="2" width="{width}" height="{side}"/>')
        parts.append(f'<text class="tick" x="{x + width / 2}" y="34" text-anchor="middle">{words}</text>')
    x = 7 * width + 40
    parts.append(f'<rect class="unknown" x="{x + 27}" y="2" width="{side}" height="{side}"/>')
    parts.append(f'<text class="tick" x="{x + 35}" y="34" text-anchor="middle">too few to say</text>')
    return "".join(parts) + "</svg>"


def _paint(lift: float) -> str:
    """Class and opacity of a heat map cell."""
    strength = max(-_STRONGEST, min(_STRONGEST, math.log2(lift))) if lift > 0 else -_STRONGEST
    kind = "close" if strength > 0 else "apart"
    return f'class="{kind}" fill-opacity="{abs(strength) / _STRONGEST:.2f}"'


def _side_by_side(lift: np.ndarray) -> np.ndarray:
    """An order in which classes of high lift are neighbours: that of the Laplacian's second eigenvector (Fiedler)."""
    affinity = np.log2(np.clip(lift, 1, 32)) + 1e-3
    np.fill_diagonal(affinity, 0)
    degree = affinity.sum(axis=1)
    if len(lift) < 3:
        return np.arange(len(lift))
    laplacian = np.eye(len(lift)) - affinity / np.sqrt(np.outer(degree, degree))
    place = np.linalg.eigh(laplacian)[1][:, 1] / np.sqrt(degree)
    return np.argsort(place if place[0] <= np.median(place) else -place, kind="stable")


def _longest(names: Sequence[str]) -> int:
    """Characters of the longest name, as far as it is shown."""
    return min(_NAME_LENGTH, max(len(name) for name in names))


def _round_ticks(highest: int) -> list[int]:
    """Four to six round numbers from 0 to at least `highest`."""
    raw = max(highest, 1) / 5
    power = 10 ** math.floor(math.log10(max(raw, 1)))
    step = next(int(factor * power) for factor in (1, 2, 5, 10) if factor * power >= raw)
    return list(range(0, highest + step, step))


def _svg(width: float, height: float, label: str) -> str:
    return (
        f'<svg role="img" aria-label="{html.escape(label)}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" xmlns="http://www.w3.org/2000/svg">'
    )


def _bar(x: float, y: float, width: float, height: float, tip: str) -> str:
    return (
        f'<rect class="bar" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}">'
        f"<title>{html.escape(tip)}</title></rect>"
    )


def _horizontal_grid(ticks: Sequence[tuple[float, str]], left: float, right: float) -> Iterator[str]:
    for y, words in ticks:
        yield f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{left - 7}" y="{y + 4:.1f}" text-anchor="end">{words}</text>'


def _axis_title(x: float, y: float, words: str, upright: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if upright else ""
    return f'<text class="axis" x="{x:.1f}" y="{y:.1f}" text-anchor="middle"{turn}>{words}</text>'

"""The differences to the baseline as a picture in SVG: a dot and its interval for each, over seeds and over images."""

import dataclasses
import html
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from contextcaps.evaluation.report.evaluation import Estimate
from contextcaps.experiments.ablation.wording import signed_text

__all__ = ["Row", "interval_picture"]

_WIDTH, _LEFT, _STEP = 680, 210, 26
_NAME_LENGTH = 22  # longer ones are cut off


class Row(NamedTuple):
    """A line of the picture."""

    label: str
    kind: str
    """`seeds` or `images`: what the interval is over."""
    difference: Estimate
    """As a share; the picture has points."""


def interval_picture(rows: Sequence[Row], baseline: str) -> str:
    """SVG, and a sentence below it; a row far beyond the others does not set the scale and is written as a number."""
    lowest, highest = _scale(rows)
    scale = (_WIDTH - _LEFT - 20) / (highest - lowest)
    zero = _LEFT - lowest * scale
    height = _STEP * len(rows) + 34
    label = "Differences to the baseline with intervals"
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">']
    parts.append(f'<line class="axis" x1="{zero:.1f}" y1="4" x2="{zero:.1f}" y2="{height - 30}"/>')
    cut = False
    for index, (name, kind, difference) in enumerate(rows):
        y = 16 + index * _STEP
        value, low, high = (100 * each for each in (difference.value, difference.low, difference.high))
        start, end = (max(lowest, min(highest, each)) for each in (low, high))
        if low == low and start < end:
            first, last = zero + start * scale, zero + end * scale
            parts.append(f'<line class="{kind}" x1="{first:.1f}" y1="{y}" x2="{last:.1f}" y2="{y}"/>')
        for beyond, edge, sign in ((low < lowest, lowest, -1), (high > highest, highest, 1)):
            if beyond:
                cut = True
                x = zero + edge * scale
                parts.append(f'<path class="{kind}" d="M{x:.1f} {y - 5}l{sign * 7} 5l{-sign * 7} 5z"/>')
        if lowest <= value <= highest:
            parts.append(f'<circle class="{kind}" cx="{zero + value * scale:.1f}" cy="{y}" r="5"/>')
        elif value == value:
            x, anchor = (_LEFT + 8, "start") if value < 0 else (_WIDTH - 28, "end")
            text = signed_text(difference.value)
            parts.append(f'<text class="tick" x="{x}" y="{y + 4}" text-anchor="{anchor}">{text}</text>')
        short = name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 1] + "…"
        text = html.escape(f"{short}, {kind}")
        parts.append(f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end">{text}</text>')
    reach = max(-lowest, highest)
    ticks = [(each, anchor) for each, anchor in ((lowest, "start"), (highest, "end")) if abs(each) > reach / 4]
    for each, anchor in ((0.0, "middle"), *ticks):
        text, x = signed_text(each / 100) if each else html.escape(baseline), zero + each * scale
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 12}" text-anchor="{anchor}">{text}</text>')
    over = "over seeds and over test images" if any(row.kind == "seeds" for row in rows) else "over test images"
    words = f"Difference of mAP to {html.escape(baseline)} in points, 95 % intervals {over}."
    return "".join(parts) + f"</svg><p>{words}{' Arrowheads: it goes on.' if cut else ''}</p>"


def _scale(rows: Sequence[Row]) -> tuple[float, float]:
    """The least and the greatest number of points with a place in the picture."""
    values = [abs(100 * row.difference.value) for row in rows if row.difference.value == row.difference.value]
    # A model that learns nothing is as far off as there is: where it set the scale, the others would lie on each other.
    bound = max(3.0, 6 * statistics.median(values)) if values else 3.0
    near = [row for row in rows if not abs(100 * row.difference.value) > bound]
    ends = [100 * end for row in near for end in dataclasses.astuple(row.difference) if end == end]
    # An interval over two seeds can be as wide as the world: it is cut off where it leaves three times the others.
    sizes = [abs(100 * row.difference.value) for row in near]
    sizes += [
        abs(100 * end) for row in near if row.kind == "images" for end in (row.difference.low, row.difference.high)
    ]
    widest = 3 * max([size for size in sizes if size == size] + [0.5])
    reach = max(0.1, min(max(map(abs, ends), default=1.0), widest))
    # No room for the side on which there is nothing, but for its beginning.
    return max(-reach, min([*ends, -reach / 8])), min(reach, max([*ends, reach / 8]))

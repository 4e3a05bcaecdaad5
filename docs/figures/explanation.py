"""Draw what `contextcaps explain` says of a photograph: each class's heat map as it was computed, and its parts.

    python docs/figures/explanation.py

The photograph comes with scikit-image (a cup on a table; CC0, Rachel Michetti). It is no part of this repository, and
the figure has none of its pixels: the grids are the numbers of `ClassExplanation.heat_map`.
"""

from pathlib import Path

import numpy as np

import contextcaps
from contextcaps.documents.drawing import Drawing
from contextcaps.experiments.photographs import bundled_photographs
from contextcaps.tagging import ClassExplanation, describe_reasons
from contextcaps.tagging.heat_maps import NEGATIVE, POSITIVE, heat_map_scale
from contextcaps.tagging.reasons import reasons_of, signed_part

PICTURE = Path(__file__).with_name("explanation.svg")
PHOTOGRAPH, ASKED = "coffee.png", "oven"
SIDE, GAP, TOP, WIDTH = 105, 20, 48, 870
BARS, PER_LOGIT, ROW = 500, 34, 16
STYLE = (
    'text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1c2128}'
    ".title{font:600 14px ui-monospace,monospace}.class{font-weight:600}.note{fill:#5f6b7a;font-size:12px}"
    ".frame{fill:none;stroke:#c9d1d9}.axis{stroke:#8b949e}"
)


def main() -> None:
    path = next(each for each in bundled_photographs() if each.name == PHOTOGRAPH)
    explanation = contextcaps.load(device="cpu").explain(path, [ASKED])
    scale, count = heat_map_scale(explanation), len(explanation.classes)
    drawing = Drawing(WIDTH, TOP + count * (SIDE + GAP) + 24, f"What contextcaps explain says of {PHOTOGRAPH}")
    drawing.write("title", 16, 26, f"$ contextcaps explain {PHOTOGRAPH} --classes {ASKED}")
    for place, each in enumerate(explanation.classes):
        draw_class(drawing, each, TOP + place * (SIDE + GAP), scale)
    words = f"orange raises the score, blue lowers it; the strongest cell is {scale:.1f} of a logit"
    drawing.write(
        "note", 16, drawing.height - 12, f"Squares: where in the photograph; {words}. Bars: parts of the logit."
    )
    PICTURE.write_text(drawing.to_svg(STYLE), encoding="utf-8")


def draw_class(drawing: Drawing, explained: ClassExplanation, top: float, scale: float) -> None:
    """Draw a class's grid, its sentence, and a bar for each part that the sentence names."""
    cells = explained.heat_map()  # [H, W]
    height, width = SIDE / cells.shape[0], SIDE / cells.shape[1]
    for (row, column), value in np.ndenumerate(cells):
        drawing.rectangle(
            "",
            16 + column * width,
            top + row * height,
            width,
            height,
            fill=colour(value),
            fill_opacity=share(value, scale),
        )
    drawing.rectangle("frame", 16, top, SIDE, SIDE)
    left = 16 + SIDE + 20
    drawing.write("class", left, top + 14, describe_reasons(explained))
    for line, (name, value) in enumerate(reasons_of(explained)):
        y, length = top + 26 + line * ROW, min(abs(value) * PER_LOGIT, 190)
        drawing.write("note", left, y + 11, name)
        drawing.rectangle("", BARS if value > 0 else BARS - length, y + 2, length, ROW - 6, fill=colour(value))
        beside = (BARS + length + 6, "start") if value > 0 else (BARS + 6, "start")
        drawing.write("note", beside[0], y + 11, signed_part(value), beside[1])
    drawing.line("axis", BARS, top + 24, BARS, top + 26 + ROW * len(reasons_of(explained)))


def colour(value: float) -> str:
    red, green, blue = POSITIVE if value > 0 else NEGATIVE
    return f"#{red:02x}{green:02x}{blue:02x}"


def share(value: float, scale: float) -> float:
    return 0.9 * abs(float(value)) / scale if scale > 0 else 0.0


if __name__ == "__main__":
    main()

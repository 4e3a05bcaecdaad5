"""A page of an explanation: a heat map of each class over the photograph, side by side, with reasons in words."""

from pathlib import Path
from typing import Any

from contextcaps.documents import Column, Row, Table
from contextcaps.documents.drawing import Drawing
from contextcaps.tagging.explanation import ClassExplanation, Explanation
from contextcaps.tagging.heat_maps import NEGATIVE, POSITIVE, heat_map_scale, paint_heat_map, photograph_of, shrunk
from contextcaps.tagging.known import spell_known
from contextcaps.tagging.reasons import describe_reasons, describe_through

__all__ = ["draw_legend", "write_explanation"]

_SIDE = 480
"""Longer side of a heat map on the page, in pixels."""
_MESSAGES_SHOWN = 8


def write_explanation(explanation: Explanation, image: Any, path: Path | str, caption: str = "") -> None:
    """Write an explanation as a page; a crash leaves the old file or none.

    Args:
        explanation: from `Tagger.explain`.
        image: the same image as there, for its picture.
        path: of the HTML file; its folder must be there.
        caption: where the tags come from, and the like.
    """
    from contextcaps.documents.page import data_address, png_of, write_page

    pixels = shrunk(photograph_of(image), _SIDE)
    scale = heat_map_scale(explanation)
    classes = [
        {
            "name": each.name,
            "score": each.score,
            "threshold": each.threshold,
            "is_tag": each.is_tag,
            # PNG: cells have sharp edges.
            "address": data_address(png_of(paint_heat_map(each.heat_map(), pixels, scale))),
            "why": describe_reasons(each),
            "parts": _parts_table(each),
        }
        for each in explanation.classes
    ]
    name = explanation.image if isinstance(explanation.image, str) else "An image"
    write_page(
        Path(path),
        "explanation.html.j2",
        title=Path(name).name,
        caption=caption,
        legend=draw_legend(scale),
        ratio=f"{pixels.shape[1]}/{pixels.shape[0]}",
        classes=classes,
        given=spell_known(explanation.given),
        moves=_moves_table(explanation),
    )


def _parts_table(explained: ClassExplanation) -> Table:
    """List the parts of a logit: the image's, the strongest messages, all that is left, and the sum."""
    messages = list(explained.messages.items())
    rows: list[Any] = [("capsules" if explained.length is not None else "positions", float(explained.evidence.sum()))]
    if explained.branch is not None:
        rows.append(("global branch", float(explained.branch.sum())))
    rows += explained.constants.items()
    rows += [(f"from {name}", value) for name, value in messages[:_MESSAGES_SHOWN]]
    if len(messages) > _MESSAGES_SHOWN:
        rows.append(("from all others", sum(value for _, value in messages[_MESSAGES_SHOWN:])))
    columns = (Column("part", align="left", wrap=True), Column("logit", _signed))
    return Table("", columns, [*rows, Row(("sum", explained.total()), quiet=False)])


def _moves_table(explanation: Explanation) -> Table:
    columns = (
        Column("class", align="left", wrap=True),
        Column("before", "{:.2f}".format),
        Column("now", "{:.2f}".format),
        Column("through", align="left", wrap=True),
    )
    rows = [(move.name, move.before, move.after, describe_through(move)) for move in explanation.moves]
    return Table("", columns, rows, empty="No score changes by so much.")


def draw_legend(scale: float) -> Drawing:
    """Draw the colours of heat maps, from what lowers a score most to what raises it most."""
    steps, width = 21, 15
    drawing = Drawing(steps * width + 20, 46, "Colours of the heat maps")
    for step in range(steps):
        value = 2 * step / (steps - 1) - 1
        red, green, blue = POSITIVE if value > 0 else NEGATIVE
        colour = f"#{red:02x}{green:02x}{blue:02x}"
        drawing.rectangle("", 10 + step * width, 2, width, 16, fill=colour, fill_opacity=0.8 * abs(value))
    digits = 2 if scale < 1 else 1
    for place, text, anchor in (
        (10, f"−{scale:.{digits}f} a cell", "start"),
        (10 + steps * width / 2, "0", "middle"),
        (10 + steps * width, f"+{scale:.{digits}f} a cell", "end"),
    ):
        drawing.write("tick", place, 36, text, anchor)
    return drawing


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")

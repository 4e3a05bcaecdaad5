"""Small drawings as SVG for pages: colours come from the page's style sheet, light or dark."""

from typing import Any, NamedTuple

__all__ = ["Drawing"]


class _Shape(NamedTuple):
    tag: str
    attributes: dict[str, Any]
    text: str
    tip: str


class Drawing:
    """Shapes in an SVG; texts and tips, which show when a pointer rests on a shape, may come from data.

    `kind` is a class of the style sheet. Attributes in Python's spelling: `text_anchor` is `text-anchor`, and
    `style_class` is `class`.
    """

    def __init__(self, width: float, height: float, label: str) -> None:
        self.width, self.height, self.label = width, height, label
        self.shapes: list[_Shape] = []

    def add(self, tag: str, text: str = "", tip: str = "", **attributes: Any) -> None:
        """Add a shape."""
        written = {
            "class" if name == "style_class" else name.replace("_", "-"): _rounded(value)
            if isinstance(value, float)
            else value
            for name, value in attributes.items()
        }
        self.shapes.append(_Shape(tag, written, text, tip))

    def rectangle(self, kind: str, x: float, y: float, width: float, height: float, **others: Any) -> None:
        """Add a rectangle."""
        self.add("rect", style_class=kind, x=x, y=y, width=width, height=height, **others)

    def line(self, kind: str, x1: float, y1: float, x2: float, y2: float) -> None:
        """Add a line."""
        self.add("line", style_class=kind, x1=x1, y1=y1, x2=x2, y2=y2)

    def write(
        self, kind: str, x: float, y: float, text: str, anchor: str = "start", turned: bool = False, **others: Any
    ) -> None:
        """Add a text, on request turned so that it is read from below."""
        place = {"transform": f"translate({x:.1f} {y:.1f}) rotate(-90)"} if turned else {"x": x, "y": y}
        self.add("text", text, style_class=kind, text_anchor=anchor, **place, **others)

    def to_html(self) -> str:
        """Return the SVG, escaped."""
        from contextcaps.documents.page import render

        return render("drawing.html.j2", drawing=self)

    def to_svg(self, style: str) -> str:
        """Return a file of its own: the SVG, escaped, on white, with a style sheet of its own."""
        from contextcaps.documents.page import Rendered, render

        return render("drawing-file.svg.j2", drawing=self, style=style, shapes=Rendered(self.to_html())) + "\n"

    def __html__(self) -> str:
        return self.to_html()


def _rounded(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")

"""Pages and drawings: everything is escaped, and a name that is missing is an error."""

from xml.etree import ElementTree

import jinja2
import pytest

from contextcaps.documents.drawing import Drawing
from contextcaps.documents.page import data_address, render

NASTY = "</title><script>alert(1)</script>\"'&\x1b[31m\ud800"


def test_a_page_is_escaped_and_asks_for_nothing() -> None:
    page = render("base.html.j2", title=NASTY)
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "default-src 'none'" in page
    page.encode("utf-8")


def test_what_a_template_does_not_get_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError, match="title"):
        render("base.html.j2")


def test_drawings_are_escaped_svg() -> None:
    drawing = Drawing(100.4, 50, NASTY)
    drawing.rectangle("bar", 1.234567, 2, 3.0, 4, tip=NASTY)
    drawing.write("name", 5, 6, NASTY, "end", turned=True)
    svg = ElementTree.fromstring(drawing.to_html())
    assert svg.attrib["viewBox"] == "0 0 100 50"
    rectangle, text = svg
    assert rectangle.attrib == {"class": "bar", "x": "1.23", "y": "2", "width": "3", "height": "4"}
    assert "<script>" in (rectangle.findtext("title") or "")
    assert text.attrib["text-anchor"] == "end"
    assert text.attrib["transform"] == "translate(5.0 6.0) rotate(-90)"


def test_data_address() -> None:
    assert data_address(b"abc") == "data:image/png;base64,YWJj"

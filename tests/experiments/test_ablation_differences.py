"""The picture of the differences: what sets its scale, what is cut off, and what is written as a number."""

import math
import re
from xml.etree import ElementTree

import pytest

from contextcaps.evaluation.report.evaluation import Estimate
from contextcaps.experiments.ablation.differences import Difference, draw_differences


def rows_of(*points: tuple[float, float, float], kind: str = "images") -> list[Difference]:
    return [
        Difference(f"m{index}", kind, Estimate(*(each / 100 for each in value))) for index, value in enumerate(points)
    ]


def drawn(rows: list[Difference], baseline: str = "base") -> ElementTree.Element:
    drawing, below = draw_differences(rows, baseline)
    assert below.startswith("Difference of mAP to")
    return ElementTree.fromstring(drawing.to_html())


def places(svg: ElementTree.Element) -> list[float]:
    return [float(each.attrib["cx"]) for each in svg.iter("circle")]


def test_dots_lie_by_their_differences() -> None:
    svg = drawn(rows_of((-2, -3, -1), (0, -1, 1), (4, 3, 5)))
    first, second, third = places(svg)
    assert third - second == pytest.approx(2 * (second - first), abs=0.3)
    axis = next(each for each in svg.iter("line") if each.attrib["class"] == "axis")
    assert float(axis.attrib["x1"]) == pytest.approx(second, abs=0.1)
    assert not list(svg.iter("path"))


def test_a_hopeless_model_does_not_set_the_scale() -> None:
    usual = [(1, 0, 2), (2, 1, 3), (-1, -2, 0), (1.5, 1, 2)]
    alone, beside = drawn(rows_of(*usual)), drawn(rows_of(*usual, (-27.7, -28.6, -26.8)))
    assert places(beside) == pytest.approx(places(alone))
    texts = [each.text for each in beside.iter("text")]
    assert "−27.7" in texts
    assert len(list(beside.iter("path"))) == 1  # to the left, where it goes on
    assert "Arrowheads: it goes on." in draw_differences(rows_of(*usual, (27.7, 26.8, 28.6)), "base").words


def test_everything_stays_inside() -> None:
    rows = [*rows_of((0.1, -50, 50), kind="seeds"), *rows_of((0.1, -1, 1), (90, 80, 100), (math.nan,) * 3)]
    svg = drawn(rows)
    for each in svg.iter("line"):
        assert all(200 <= float(each.attrib[name]) <= 680 for name in ("x1", "x2"))
    assert all(200 <= place <= 680 for place in places(svg))
    marks = [float(re.match(r"M([\d.]+)", each.attrib["d"])[1]) for each in svg.iter("path")]
    assert all(200 <= mark <= 680 for mark in marks)
    assert len(marks) == 3  # two ends of the first, one of the third
    assert "nan" not in ElementTree.tostring(svg, encoding="unicode")


def test_names_are_escaped_and_shortened() -> None:
    rows = [Difference("<b>" + "x" * 40, "images", Estimate(0.01, 0.0, 0.02))]
    text = draw_differences(rows, "a<b").drawing.to_html()
    assert "<b>" not in text
    assert "a&lt;b" in text
    assert "…, images" in text

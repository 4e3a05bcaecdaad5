"""Charts are written whole or not at all, say what they are, and read no mathematics in names."""

import os
from pathlib import Path

import matplotlib
import pytest
from PIL import Image

from contextcaps.documents import charts
from contextcaps.evaluation.report.evaluation import Estimate


def draw(path: Path, title: str = r"$\frac{$ & Straße") -> None:
    with charts.picture(path, 5, 4, {"Title": title, "Seed": "3"}) as figure:
        axes = figure.subplots()
        charts.draw_curve(axes, [(1, 2), (2, 3)], title, 8, band=[(1, 1, 3), (2, 2, 4)], marker="o")
        charts.draw_intervals(axes, [1, 2], [Estimate(0.02, 0.03, 0.04), Estimate(0.02, float("nan"), float("nan"))])
        axes.set_xticks([1], [title])
        charts.plain_axes(axes)
        charts.legend_above(axes)
        charts.frame(figure, title, charts.caption_lines({"data": title, "seed": 3}, "an ending"))


def test_a_chart_and_its_metadata(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    draw(tmp_path / "new" / "a.png")
    with Image.open(tmp_path / "new" / "a.png") as image:
        assert image.text["Seed"] == "3"
        assert image.text["Software"] == "contextcaps"
        assert image.size == (600, 480)
    assert dict(matplotlib.rcParams) == before


def test_a_failed_write_leaves_the_chart_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw(tmp_path / "a.png")
    before = (tmp_path / "a.png").read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        draw(tmp_path / "a.png", "another")
    assert (tmp_path / "a.png").read_bytes() == before
    assert os.listdir(tmp_path) == ["a.png"]


def test_lines_of_a_caption_end_between_facts() -> None:
    lines = charts.caption_lines({f"name {number}": "some words" for number in range(9)}, "the end", width=50).split(
        "\n"
    )
    assert len(lines) > 2
    assert all(line.startswith("name") for line in lines[:-1])
    assert lines[-1].endswith("the end")

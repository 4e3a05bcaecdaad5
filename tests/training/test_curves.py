"""Curves: the file, its metadata, what is drawn in it, and histories with gaps."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from contextcaps.documents import charts
from contextcaps.training.curves import write_convergence, write_curves


def draw_history(epochs: int, top: float = 0.4, **others: Any) -> list[dict[str, Any]]:
    """Falling losses; mAP that rises until epoch 25 and falls after."""
    return [
        {
            "epoch": epoch,
            "train_loss": 3 * math.exp(-epoch / 8),
            "val_loss": 2 * math.exp(-epoch / 8) + 0.5,
            "val_mAP": top * (1 - math.exp(-epoch / 6)) - 0.02 * max(0, epoch - 25),
            "prior_mAP": 0.06,
            "learning_rate": 1e-3,
            **others,
        }
        for epoch in range(1, epochs + 1)
    ]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are written, to look into."""
    figures: list[Any] = []
    write = charts.write_figure

    def keep(figure: Any, *others: Any) -> None:
        figures.append(figure)
        write(figure, *others)

    monkeypatch.setattr(charts, "write_figure", keep)
    return figures


def lines_of(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}


def ink(path: Path) -> float:
    """Share of pixels that are not white."""
    return float((np.asarray(Image.open(path).convert("L")) < 250).mean())


@pytest.mark.parametrize("epochs", [1, 3, 40])
def test_curves_show_losses_and_map(tmp_path: Path, drawn: list[Any], epochs: int) -> None:
    history, path = draw_history(epochs), tmp_path / "curves.png"
    write_curves(history, path, "contextcaps on scenes", seed=17)
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert min(image.size) > 300
        assert image.text["Seed"] == "17"
        assert image.text["Title"] == "contextcaps on scenes"
    assert ink(path) > 0.01
    (figure,) = drawn
    assert figure.get_suptitle() == "contextcaps on scenes"
    assert figure.get_supxlabel() == "seed 17"
    losses, precisions = figure.axes
    found = lines_of(losses)
    assert found["training"] == ([e["epoch"] for e in history], [e["train_loss"] for e in history])
    assert found["validation"][1] == [e["val_loss"] for e in history]
    found = lines_of(precisions)
    assert found["validation"][1] == pytest.approx([100 * e["val_mAP"] for e in history])
    best = max(history, key=lambda entry: entry["val_mAP"])
    assert best["epoch"] == min(epochs, 25)
    label = f"best: {100 * best['val_mAP']:.1f}, epoch {best['epoch']}"
    assert found[label] == ([best["epoch"]], [pytest.approx(100 * best["val_mAP"])])
    assert found["constant prior: 6.0"][1] == pytest.approx([6, 6])
    for axes in figure.axes:
        assert axes.get_xlabel() == "epoch"
        assert axes.get_ylabel()
        assert axes.get_title()
        assert axes.get_legend() is not None
    assert precisions.get_ylim()[0] == 0


def test_the_best_of_equal_epochs_is_the_first(tmp_path: Path, drawn: list[Any]) -> None:
    write_curves([{"epoch": e, "val_mAP": v} for e, v in ((1, 0.1), (2, 0.3), (3, 0.3))], tmp_path / "a.png", "t", 0)
    assert "best: 30.0, epoch 2" in lines_of(drawn[0].axes[1])


def test_gaps_are_left_out(tmp_path: Path, drawn: list[Any]) -> None:
    """Missing, None, NaN, infinite and empty values, as a CSV file may have them; numbers as text, too."""
    history: list[dict[str, Any]] = [
        {"epoch": "1", "train_loss": "2.5", "val_mAP": ""},
        {"epoch": 2, "train_loss": math.inf, "val_mAP": None},
        {"epoch": 3, "val_mAP": math.nan},
        {"epoch": 4, "train_loss": 1.5, "val_mAP": 0.2},
    ]
    write_curves(history, tmp_path / "curves.png", "gaps", 0)
    losses, precisions = map(lines_of, drawn[0].axes)
    assert losses["training"] == ([1, 4], [2.5, 1.5])
    assert "validation" not in losses
    assert precisions["validation"] == ([4], [20])
    assert not any("prior" in label for label in precisions)


@pytest.mark.parametrize("history", [[], [{}], [{"epoch": 1, "train_loss": math.nan}]], ids=["none", "empty", "NaN"])
def test_nothing_to_draw_is_a_picture_that_says_so(
    tmp_path: Path, drawn: list[Any], history: list[dict[str, Any]]
) -> None:
    write_curves(history, tmp_path / "curves.png", "nothing yet", 0)
    assert [text.get_text() for axes in drawn[0].axes for text in axes.texts] == ["no values"] * 2
    write_convergence({}, tmp_path / "convergence.png", "nothing yet", 0)
    assert (tmp_path / "convergence.png").exists()


@pytest.mark.parametrize("names", [["capsnet", "contextcaps"], ["a", "b", "c", "d"]], ids=["two", "four"])
def test_convergence_shows_every_run(tmp_path: Path, drawn: list[Any], names: list[str]) -> None:
    histories = {name: draw_history(8, 0.3 + 0.02 * index) for index, name in enumerate(names)}
    path = tmp_path / "new" / "convergence.png"
    write_convergence(histories, path, "scenes", seed="0, 1, 2")
    with Image.open(path) as image:
        assert image.text["Seed"] == "0, 1, 2"
    axes = drawn[0].axes[0]
    found = lines_of(axes)
    for name, history in histories.items():
        label = f"{name} (best: {100 * history[-1]['val_mAP']:.1f}, epoch 8)"
        assert found[label][1] == pytest.approx([100 * entry["val_mAP"] for entry in history])
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(legend) == len(names) + 1
    assert legend[-1] == "constant prior: 6.0"
    colours = {line.get_color() for line in axes.get_lines() if "best" in line.get_label()}
    assert len(colours) == len(names)


def test_many_runs_can_be_told_apart(tmp_path: Path, drawn: list[Any]) -> None:
    """No two lines look alike, and the legend covers none of them."""
    histories = {f"run {number}": draw_history(3) for number in range(16)}
    write_convergence(histories, tmp_path / "many.png", "scenes", 0)
    (figure,) = drawn
    (axes,) = figure.axes
    looks = [(line.get_color(), str(line.get_linestyle()), str(line._dash_pattern)) for line in axes.lines[::2][:16]]
    assert len(set(looks)) == 16
    figure.canvas.draw()
    legend, frame = axes.get_legend().get_window_extent(), axes.get_window_extent()
    assert legend.x0 >= frame.x1
    assert legend.x1 <= figure.bbox.x1


def test_a_run_without_results_is_named(tmp_path: Path, drawn: list[Any]) -> None:
    write_convergence({"good": draw_history(2), "broken": []}, tmp_path / "a.png", "scenes", 0)
    legend = [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    assert "broken (no results)" in legend


def test_dollars_are_no_mathematics(tmp_path: Path) -> None:
    write_curves(draw_history(2), tmp_path / "a.png", r"table:$\frac{$", 0)
    write_convergence({r"$\frac{$": draw_history(2)}, tmp_path / "b.png", "Straße $x", 0)


def test_the_same_history_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        write_curves(draw_history(3), tmp_path / name, "same", 0)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_failed_write_leaves_the_picture_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "curves.png"
    write_curves(draw_history(2), path, "first", 0)
    before = path.read_bytes()

    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_curves(draw_history(3), path, "second", 0)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["curves.png"]

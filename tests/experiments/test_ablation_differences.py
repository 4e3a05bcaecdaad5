"""The chart of the differences: dots at their values, everything inside, nothing pressed together."""

import math
from types import SimpleNamespace

import pytest

from contextcaps.documents import charts
from contextcaps.evaluation.report.evaluation import Estimate
from contextcaps.experiments.ablation.figures import draw_differences


def model(label: str, images: tuple[float, float, float], seeds: tuple[float, float, float] | None = None):
    """A model with a difference in points over test images, and on request over seeds."""
    over_seeds, over_images = (Estimate(*(each / 100 for each in points)) for points in (seeds or images, images))
    return SimpleNamespace(label=label, difference=over_seeds, image_difference=over_images, pairs=2 if seeds else 1)


@pytest.fixture
def axes(tmp_path):
    with charts.picture(tmp_path / "x.png", 8, 4, {}) as figure:
        yield figure.subplots()


def dots(axes) -> dict[str, list[float]]:
    return {line.get_label(): line.get_xdata().tolist() for line in axes.lines if line.get_label()[0] != "_"}


def intervals(axes) -> list[list[float]]:
    return [[float(x) for x, _ in path] for each in axes.collections for path in each.get_segments()]


def test_dots_and_intervals_lie_by_their_differences(axes) -> None:
    draw_differences(axes, [model("a", (-2, -3, -1)), model("b", (0, -1, 1), (0.5, -4, 5)), model("c", (4, 3, 5))])
    assert dots(axes) == {"over seeds": pytest.approx([0.5]), "over test images": pytest.approx([-2, 0, 4])}
    assert intervals(axes) == [pytest.approx(each) for each in ([-4, 5], [-3, -1], [-1, 1], [3, 5])]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b", "c"]


def test_a_model_that_learns_nothing_does_not_press_the_others_together(axes) -> None:
    draw_differences(axes, [model("a", (1, 0, 2)), model("b", (-1, -2, 0)), model("hopeless", (-27.7, -28.6, -26.8))])
    axes.figure.canvas.draw()
    left, right = axes.get_window_extent().intervalx
    first, second, last = (axes.transData.transform((x, 0))[0] for x in dots(axes)["over test images"])
    assert left < last < second < first < right
    assert first - second > 0.25 * (right - left)  # two of the thirty points, a quarter of the width and more


def test_everything_stays_inside(axes) -> None:
    models = [model("a", (0.1, -1, 1), (0.1, -50, 50)), model("b", (90, 80, 100)), model("c", (math.nan,) * 3)]
    draw_differences(axes, models)
    low, high = axes.get_xlim()
    known = [x for each in intervals(axes) for x in each if math.isfinite(x)]
    assert low <= min(known) < max(known) <= high
    shown = [text.get_text() for x, text in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True) if x >= -30]
    assert shown == ["−30", "−10", "−3", "−2", "−1", "0", "+1", "+2", "+3", "+10", "+30", "+100"]


def test_names_are_shortened_and_no_mathematics(axes) -> None:
    draw_differences(axes, [model("$x" * 40 + "$", (1, 0, 2))])
    (name,) = (text.get_text() for text in axes.get_yticklabels())
    assert name.startswith("$x")
    assert name.endswith("…")

"""The plots of an evaluation: classes, reliability, precision and recall."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextcaps.documents import charts, percent, shortened
from contextcaps.evaluation.report.evaluation import ClassFigures, Evaluation
from contextcaps.evaluation.report.tables import metric_interval, metric_value, ranked_classes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw_pictures"]

PICTURES = {
    "classes.png": "Average precision of each class",
    "reliability.png": "Reliability: how often classes with a given score are present",
    "precision-recall.png": "Precision and recall over all pairs of image and class",
}
"""File names and what they show."""

_PREDICTORS = (("model", "model", charts.MODEL, "o"), ("prior", "constant prior", charts.PRIOR, "s"))
_DASHED: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (4, 3))}
_ALL_SHOWN, _EACH_END = 60, 25


def draw_pictures(evaluation: Evaluation, folder: Path, title: str, facts: Mapping[str, object]) -> list[Path]:
    """Draw each of `PICTURES` into a folder; return the files."""
    description = {**facts, "resamples": evaluation.resamples, "seed of the resampling": evaluation.seed}
    metadata = {"Title": title, "Description": "; ".join(f"{key}: {each}" for key, each in description.items())}
    resampled = f"{evaluation.resamples} resamples of {evaluation.images:,} images, seed {evaluation.seed}"
    caption = charts.caption_lines(facts, f"95 % intervals: {resampled}")
    parts = _class_parts(evaluation)
    drawn = (
        (_draw_classes, 7.5 if len(parts) == 1 else 13, 2.3 + 0.2 * max(1, *map(len, parts))),
        (_draw_reliability, 6.5, 7),
        (_draw_precision_recall, 6.5, 5.6),
    )
    for (name, heading), (draw, width, height) in zip(PICTURES.items(), drawn, strict=True):
        with charts.picture(folder / name, width, height, metadata) as figure:
            draw(figure, evaluation)
            charts.frame(figure, f"{heading}\n{shortened(title, int(10.5 * width))}", caption)
    return [folder / name for name in PICTURES]


def _class_parts(evaluation: Evaluation) -> list[list[ClassFigures]]:
    """Return the classes with a positive, best first; of many classes both ends only."""
    shown = [each for each in ranked_classes(evaluation) if each.positives]
    return [shown] if len(shown) <= _ALL_SHOWN else [shown[:_EACH_END], shown[-_EACH_END:]]


def _draw_classes(figure: "Figure", evaluation: Evaluation) -> None:
    """Draw bars of average precision."""
    parts = _class_parts(evaluation)
    grid = figure.subplots(1, len(parts), squeeze=False, sharex=True)[0]
    mean = evaluation.metrics["mAP"].model
    label = f"model's mAP {metric_value('mAP', mean.value)} {metric_interval('mAP', mean)}"
    for axes, part in zip(grid, parts, strict=True):
        _draw_bars(axes, part)
        axes.axvline(100 * mean.value, color=charts.INK, zorder=2.5, label=label, **_DASHED)
    if len(parts) == 2:
        count = len(evaluation.classes) - evaluation.left_out
        for axes, end in zip(grid, ("best", "worst"), strict=True):
            axes.set_title(f"the {_EACH_END} {end} of {count} classes", fontsize=10, color=charts.MUTED, loc="left")
    found = {handle.get_label(): handle for handle in grid[0].get_legend_handles_labels()[0]}
    handles = [found[name] for name in ("model", "constant prior", label) if name in found]
    charts.legend_above(grid[0], columns=3, lift=1.0 if len(parts) == 1 else 1.04, handles=handles)


def _draw_bars(axes: "Axes", part: list[ClassFigures]) -> None:
    places = range(len(part))
    values = [100 * each.average_precision for each in part]
    priors = [100 * each.prior_average_precision for each in part]
    if part:
        axes.barh(places, values, color=charts.MODEL, height=0.72, zorder=2, label="model")
        axes.scatter(
            priors, places, marker="|", s=70, linewidths=2.2, color=charts.PRIOR, zorder=3, label="constant prior"
        )
    axes.set_yticks(places, [f"{shortened(each.name, 30)} ({each.positives:,})" for each in part], fontsize=8)
    axes.set(xlim=(0, 100), ylim=(len(part) - 0.4, -0.6), xlabel="average precision (%)", ylabel="class (positives)")
    charts.plain_axes(axes, "x")
    axes.tick_params(axis="y", length=0)


def _draw_reliability(figure: "Figure", evaluation: Evaluation) -> None:
    """Draw the share of present pairs against the mean score, and how many pairs each bin has."""
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    upper.plot([0, 1], [0, 1], color=charts.MUTED, label="perfectly calibrated", **_DASHED)
    bins = len(evaluation.reliability["model"].pairs)
    edges = [index / bins for index in range(bins + 1)]
    for name, label, colour, marker in _PREDICTORS:
        found = evaluation.reliability[name]
        filled = [index for index, pairs in enumerate(found.pairs) if pairs]
        error = getattr(evaluation.metrics["ECE"], name)
        upper.plot(
            [found.mean_score[index] for index in filled],
            [found.frequency[index] for index in filled],
            color=colour,
            marker=marker,
            markersize=5,
            linewidth=1.5,
            clip_on=False,
            label=f"{label}: ECE {metric_value('ECE', error.value)} % {metric_interval('ECE', error)}",
        )
        is_model = name == "model"
        lower.stairs(found.pairs, edges, color=colour, fill=is_model, alpha=0.55 if is_model else 1, linewidth=1.5)
    upper.set(xlim=(0, 1), ylim=(0, 1), ylabel="share that is present")
    charts.legend_above(upper)
    lower.set_yscale("log")
    charts.log_ticks(lower.yaxis, between=(1,))
    lower.set_ylim(0.7, 3 * evaluation.images * len(evaluation.classes))
    lower.set(xlabel=f"score ({bins} bins of equal width)", ylabel="pairs of image\nand class")
    for axes in (upper, lower):
        charts.plain_axes(axes)


def _draw_precision_recall(figure: "Figure", evaluation: Evaluation) -> None:
    axes = figure.subplots()
    for name, label, colour, _ in _PREDICTORS:
        curve, micro = evaluation.curves[name], getattr(evaluation.metrics["micro_AP"], name)
        recall, precision = ([100 * each for each in points] for points in (curve.recall, curve.precision))
        # Between two thresholds nothing can be had: precision is what the next one gives, as AP counts it.
        axes.step(
            [*([0] if recall else []), *recall],
            [*precision[:1], *precision],
            where="pre",
            color=colour,
            linewidth=1.8,
            label=f"{label}: micro AP {metric_value('micro_AP', micro.value)} {metric_interval('micro_AP', micro)}",
        )
    share = evaluation.positives / (evaluation.images * len(evaluation.classes))
    axes.axhline(100 * share, color=charts.MUTED, label=f"random order: {percent(share)}", **_DASHED)
    axes.set(xlim=(0, 100), ylim=(0, 101), xlabel="recall (%)", ylabel="precision (%)")
    charts.plain_axes(axes)
    charts.legend_above(axes)

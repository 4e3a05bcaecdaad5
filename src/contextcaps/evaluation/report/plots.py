"""The plots of an evaluation: classes, reliability, precision and recall."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from contextcaps.evaluation.report.evaluation import ClassFigures, Evaluation, Reliability
from contextcaps.evaluation.report.wording import estimate_text, percent, ranked_classes
from contextcaps.extras import import_extra

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

_MODEL, _PRIOR, _INK, _MUTED, _GRID = "#2563a8", "#d97706", "#1f2937", "#566273", "#e3e7ed"
_ALL_SHOWN, _EACH_END = 60, 25


def draw_pictures(evaluation: Evaluation, title: str, facts: Mapping[str, object]) -> "dict[str, Figure]":
    """One figure for each of `PICTURES`; nothing of matplotlib's global state is touched."""
    figure_class = import_extra("matplotlib.figure", "train", "plots of an evaluation").Figure
    font = import_extra("matplotlib", "train", "plots of an evaluation").rc_context(
        {"font.family": "DejaVu Sans", "font.size": 10, "text.parse_math": False}
    )
    with font:
        figures = (
            _classes(figure_class, evaluation),
            _reliability(figure_class, evaluation),
            _precision_recall(figure_class, evaluation),
        )
        for figure, heading in zip(figures, PICTURES.values(), strict=True):
            _frame(figure, heading, title, _caption(evaluation, facts))
    return dict(zip(PICTURES, figures, strict=True))


def _classes(figure_class: Any, evaluation: Evaluation) -> "Figure":
    """Bars of average precision, best first; of many classes only both ends."""
    shown = [each for each in ranked_classes(evaluation) if each.positives]
    parts = [shown] if len(shown) <= _ALL_SHOWN else [shown[:_EACH_END], shown[-_EACH_END:]]
    rows = max(1, max(map(len, parts)))
    figure = figure_class(figsize=(7.5 if len(parts) == 1 else 13, 2.3 + 0.2 * rows), layout="constrained")
    grid = figure.subplots(1, len(parts), squeeze=False, sharex=True)[0]
    for axes, part in zip(grid, parts, strict=True):
        _bars(axes, part)
    if len(parts) == 2:
        for axes, end in zip(grid, ("best", "worst"), strict=True):
            axes.set_title(f"the {_EACH_END} {end} of {len(shown)} classes", fontsize=10, color=_MUTED, loc="left")
    mean = evaluation.metrics["mAP"]
    for axes in grid:
        axes.axvline(100 * mean.model.value, color=_INK, linewidth=1, linestyle=(0, (4, 3)), zorder=2.5)
    (line,) = grid[0].plot([], [], color=_INK, linewidth=1, linestyle=(0, (4, 3)))
    handles = [grid[0].patches[0], grid[0].collections[0], line] if shown else [line]
    value, interval = estimate_text("mAP", mean.model)
    labels = ["model", "constant prior", f"model's mAP {value} {interval}"][-len(handles) :]
    _legend_above(grid[0], handles, labels, columns=3, lift=1.0 if len(parts) == 1 else 1.04)
    return figure


def _bars(axes: "Axes", part: list[ClassFigures]) -> None:
    places = range(len(part))
    axes.barh(places, [100 * each.average_precision for each in part], color=_MODEL, height=0.72, zorder=2)
    axes.scatter(
        [100 * each.prior_average_precision for each in part],
        places,
        marker="|",
        s=70,
        linewidths=2.2,
        color=_PRIOR,
        zorder=3,
    )
    axes.set_yticks(places, [f"{_short(each.name, 30)} ({each.positives:,})" for each in part], fontsize=8)
    axes.set_ylim(len(part) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.tick_params(axis="x", labelsize=9)
    axes.set_xlabel("average precision (%)")
    axes.set_ylabel("class (positives)")
    axes.grid(axis="x", color=_GRID, zorder=0)
    axes.tick_params(axis="y", length=0)


def _reliability(figure_class: Any, evaluation: Evaluation) -> "Figure":
    """Share of present pairs against mean score, and how many pairs each bin has."""
    figure = figure_class(figsize=(6.5, 7), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    upper.plot([0, 1], [0, 1], color=_MUTED, linewidth=1, linestyle=(0, (4, 3)), label="perfectly calibrated")
    bins = len(evaluation.reliability["model"].pairs)
    for name, label, colour, marker in (("model", "model", _MODEL, "o"), ("prior", "constant prior", _PRIOR, "s")):
        filled = _filled(evaluation.reliability[name])
        value, interval = estimate_text("ECE", getattr(evaluation.metrics["ECE"], name))
        upper.plot(
            [score for _, score, _ in filled],
            [share for _, _, share in filled],
            color=colour,
            marker=marker,
            markersize=5,
            linewidth=1.5,
            clip_on=False,
            label=f"{label}: ECE {value} % {interval}",
        )
        edges = [index / bins for index in range(bins + 1)]
        lower.stairs(
            evaluation.reliability[name].pairs,
            edges,
            color=colour,
            fill=name == "model",
            alpha=0.55 if name == "model" else 1,
            linewidth=1.5,
        )
    upper.set(xlim=(0, 1), ylim=(0, 1), ylabel="share that is present")
    _legend_above(upper)
    lower.set_yscale("log")
    lower.set_ylim(0.7, 3 * evaluation.images * len(evaluation.classes))
    lower.set(xlabel=f"score ({bins} bins of equal width)", ylabel="pairs of image\nand class")
    for axes in (upper, lower):
        axes.grid(color=_GRID)
        axes.set_axisbelow(True)
    return figure


def _filled(reliability: Reliability) -> list[tuple[int, float, float]]:
    columns = zip(reliability.pairs, reliability.mean_score, reliability.frequency, strict=True)
    return [column for column in columns if column[0]]


def _precision_recall(figure_class: Any, evaluation: Evaluation) -> "Figure":
    figure = figure_class(figsize=(6.5, 5.6), layout="constrained")
    axes = figure.subplots()
    for name, label, colour in (("model", "model", _MODEL), ("prior", "constant prior", _PRIOR)):
        curve = evaluation.curves[name]
        value, interval = estimate_text("micro_AP", getattr(evaluation.metrics["micro_AP"], name))
        recall, precision = ([100 * each for each in points] for points in (curve.recall, curve.precision))
        # Between two thresholds nothing can be had: precision is what the next one gives, as AP counts it.
        axes.step(
            [*([0] if recall else []), *recall],
            [*precision[:1], *precision],
            where="pre",
            color=colour,
            linewidth=1.8,
            label=f"{label}: micro AP {value} {interval}",
        )
    share = evaluation.positives / (evaluation.images * len(evaluation.classes))
    axes.axhline(100 * share, color=_MUTED, linewidth=1, linestyle=(0, (4, 3)), label=f"random order: {percent(share)}")
    axes.set(xlim=(0, 100), ylim=(0, 101), xlabel="recall (%)", ylabel="precision (%)")
    axes.grid(color=_GRID)
    _legend_above(axes)
    return figure


def _legend_above(
    axes: "Axes",
    handles: list[Any] | None = None,
    labels: list[str] | None = None,
    columns: int = 1,
    lift: float = 1.0,
) -> None:
    """Outside, where no curve can be behind it."""
    given = {} if handles is None else {"handles": handles, "labels": labels}
    axes.legend(
        **given,
        loc="lower left",
        bbox_to_anchor=(0, lift),
        ncols=columns,
        columnspacing=1.4,
        frameon=False,
        borderpad=0.2,
        labelspacing=0.35,
        fontsize=9,
    )


def _frame(figure: "Figure", heading: str, title: str, caption: str) -> None:
    """Title above, facts below, quiet axes between."""
    figure.suptitle(
        f"{heading}\n{_short(title, int(10.5 * figure.get_figwidth()))}", fontsize=12, color=_INK, x=0.02, ha="left"
    )
    figure.supxlabel(caption, fontsize=7.5, color=_MUTED, x=0.02, ha="left")
    for axes in figure.axes:
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)


def _caption(evaluation: Evaluation, facts: Mapping[str, object]) -> str:
    """The facts in lines that fit, ending with what the intervals are."""
    ending = f"95 % intervals: {evaluation.resamples} resamples of {evaluation.images:,} images, seed {evaluation.seed}"
    lines = [""]
    for text in [*(f"{name}: {_short(str(value), 60)}" for name, value in facts.items()), ending]:
        if lines[-1] and len(lines[-1]) + len(text) > 100:
            lines.append(text)
        else:
            lines[-1] += f"   ·   {text}" if lines[-1] else text
    return "\n".join(lines)


def _short(text: str, letters: int = 34) -> str:
    text = " ".join(text.split())
    return text if len(text) <= letters else text[: letters - 1] + "…"

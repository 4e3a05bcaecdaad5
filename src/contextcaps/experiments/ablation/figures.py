"""The charts of an ablation: differences to the baseline, validation mAP by epoch, and the gain of each class."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from contextcaps.documents import charts, counted, shortened
from contextcaps.experiments.ablation.report import ClassGain, ModelReport, Report
from contextcaps.experiments.ablation.tables import class_table_name
from contextcaps.training.curves import write_convergence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_differences", "figures_of", "write_figures"]

_DIFFERENCES = "differences.png"
_CONVERGENCE = "convergence.png"
_NAMED = 4  # classes named at each end


def figures_of(report: Report) -> dict[str, tuple[str, str]]:
    """Return the name of a table → the file of the chart that belongs to it, and what it shows."""
    words = "Gain of each class by its frequency and company"
    found = {"convergence": (_CONVERGENCE, "Validation mAP by epoch")}
    if _compared(report):
        found["table"] = (_DIFFERENCES, "Difference of test mAP to the baseline")
    return found | {class_table_name(each): (_classes_file(each.label), words) for each in report.models if each.gains}


def _compared(report: Report) -> list[ModelReport]:
    return [model for model in report.models if model.difference is not None]


def _classes_file(label: str) -> str:
    return f"classes-{label}.png"


def write_figures(report: Report, folder: Path) -> list[Path]:
    """Draw all charts into a folder; those of models that are not in the report any more go."""
    seeds = ", ".join(map(str, report.plan.seeds))
    histories = {model.label: model.mean_history() for model in report.models}
    bands = {model.label: model.band() for model in report.models}
    title = f"Validation mAP by epoch: {report.plan.base.data}"
    if any(bands.values()):
        title += "\nmean and range over seeds"
    write_convergence(histories, folder / _CONVERGENCE, title, seeds, bands)
    if _compared(report):
        _write_differences(_compared(report), report.plan.baseline, folder / _DIFFERENCES, seeds)
    for model in report.models:
        if model.gains:
            _write_classes(model, report.plan.baseline, folder / _classes_file(model.label), seeds)
    written = [folder / name for name, _ in figures_of(report).values()]
    for path in folder.glob(_classes_file("*")):
        if path not in written:
            path.unlink()
    return written


def _write_differences(models: Sequence[ModelReport], baseline: str, path: Path, seeds: str) -> None:
    title = f"Difference of test mAP to {shortened(baseline, 60)}, with 95 % intervals"
    with charts.picture(path, 9, 1.6 + 0.45 * len(models), {"Title": title, "Seed": seeds}) as figure:
        draw_differences(figure.subplots(), models)
        charts.frame(figure, title, f"seed {seeds}")


def draw_differences(axes: "Axes", models: Sequence[ModelReport]) -> None:
    """Draw a dot with its intervals for each model, over seeds and over test images.

    The axis is linear up to ±3 points and logarithmic beyond: neither a model that learns nothing nor the wide
    interval of two seeds presses the others together.
    """
    looks = (("over seeds", "difference", -0.16, "o"), ("over test images", "image_difference", 0.16, "s"))
    for number, (name, field, shift, marker) in enumerate(looks):
        rows = [
            (place + shift, getattr(each, field)) for place, each in enumerate(models) if shift > 0 or each.pairs > 1
        ]
        places, values = [place for place, _ in rows], [100 * each.value for _, each in rows]
        if rows:
            ends = ([100 * each.low for _, each in rows], [100 * each.high for _, each in rows])
            axes.hlines(places, *ends, color=charts.COLOURS[number], linewidth=2)
            axes.plot(values, places, marker, color=charts.COLOURS[number], markersize=6, label=name)
    axes.axvline(0, color=charts.MUTED, linewidth=1)
    axes.set_xscale("symlog", linthresh=3, linscale=2)
    ticks = (-100, -30, -10, -3, -2, -1, 0, 1, 2, 3, 10, 30, 100)
    low, high = axes.get_xlim()
    axes.set_xticks(ticks, [f"{tick:+d}".replace("-", "−") if tick else "0" for tick in ticks])
    axes.set_xlim(min(low, -1), max(high, 1))
    axes.set_xlabel("points of mAP")
    axes.set_yticks(range(len(models)), [shortened(model.label, 40) for model in models])
    axes.set_ylim(len(models) - 0.5, -0.5)
    charts.plain_axes(axes, "x")
    charts.legend_above(axes, columns=2)


def _write_classes(model: ModelReport, baseline: str, path: Path, seeds: str) -> None:
    title = f"Gain of each class: {model.label} − {baseline}"
    if model.pairs > 1:
        which = "mean and 95 % interval" if model.class_intervals else "mean"
        title += f", {which} over {counted(model.pairs, 'seed')}"
    with charts.picture(path, 10, 4.4, {"Title": title, "Seed": seeds}) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        _scatter(left, model.gains, [100 * each.frequency for each in model.gains], model.class_intervals)
        left.set_xscale("log")
        charts.log_ticks(left.xaxis)
        left.set_xlabel("share of training images that show the class (%)")
        left.set_ylabel("gain of average precision (points)")
        _scatter(right, model.gains, [each.company for each in model.gains], model.class_intervals)
        right.set_xlabel("other classes in a test image that shows it (mean)")
        charts.frame(figure, title, f"seed {seeds}")


def _scatter(axes: "Axes", gains: tuple[ClassGain, ...], places: list[float], bars: bool) -> None:
    values = [100 * each.gain.value for each in gains]
    for each, place, value in zip(gains, places, values, strict=True):
        colour = charts.GOOD if value > 0 else charts.BAD
        if bars and each.gain.low == each.gain.low:  # not NaN
            axes.plot([place] * 2, [100 * each.gain.low, 100 * each.gain.high], color=colour, alpha=0.25, linewidth=1.2)
        axes.plot([place], [value], "o", color=colour, markersize=4.5)
    for index in [*range(min(_NAMED, len(gains))), *range(max(_NAMED, len(gains) - _NAMED), len(gains))]:
        point = (places[index], values[index])
        axes.annotate(gains[index].name, point, (5, 4), textcoords="offset points", fontsize=8, color=charts.INK)
    axes.axhline(0, color=charts.MUTED, linewidth=1)
    # The window shows all means; intervals of few seeds may reach far beyond it.
    room = 0.35 * (max(values) - min(values)) + 1
    axes.set_ylim(min(values) - room, max(values) + room)
    charts.plain_axes(axes)

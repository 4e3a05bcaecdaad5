"""The charts of an ablation: the paper's, validation mAP by epoch, and each class's gain by frequency and company."""

from pathlib import Path
from typing import TYPE_CHECKING

from contextcaps.documents import charts, counted
from contextcaps.experiments.ablation.report import ClassGain, ModelReport, Report
from contextcaps.experiments.ablation.tables import class_table_name
from contextcaps.training.curves import write_convergence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["figures_of", "write_figures"]

_CONVERGENCE = "convergence.png"
_NAMED = 4  # classes named at each end


def figures_of(report: Report) -> dict[str, tuple[str, str]]:
    """Return the name of a table → the file of the chart that belongs to it, and what it shows."""
    words = "Gain of each class by its frequency and company"
    found = {"convergence": (_CONVERGENCE, "Validation mAP by epoch")}
    return found | {class_table_name(each): (_classes_file(each.label), words) for each in report.models if each.gains}


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
    for model in report.models:
        if model.gains:
            _write_classes(model, report.plan.baseline, folder / _classes_file(model.label), seeds)
    written = [folder / name for name, _ in figures_of(report).values()]
    for path in folder.glob(_classes_file("*")):
        if path not in written:
            path.unlink()
    return written


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

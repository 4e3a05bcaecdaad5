"""The figures of an ablation: the paper's, validation mAP by epoch, and each class's gain by frequency and company."""

import io
from pathlib import Path
from typing import Any

from contextcaps.atomic import write_atomically
from contextcaps.experiments.ablation.report import ClassGain, ModelReport, Report
from contextcaps.extras import import_extra
from contextcaps.training.curves import write_convergence

__all__ = ["CONVERGENCE", "classes_picture", "write_figures"]

CONVERGENCE = "convergence.png"
_UP, _DOWN, _GREY = "#009E73", "#D55E00", "#666666"
_NAMED = 4  # classes named at each end


def classes_picture(label: str) -> str:
    """The file of a model's classes."""
    return f"classes-{label}.png"


def write_figures(report: Report, folder: Path) -> list[Path]:
    """Draw all figures into a folder."""
    seeds = ", ".join(map(str, report.plan.seeds))
    histories = {model.label: model.mean_history() for model in report.models}
    bands = {model.label: model.band() for model in report.models}
    title = f"Validation mAP by epoch: {report.plan.base.data}"
    if any(bands.values()):
        title += "\nmean and range over seeds"
    write_convergence(histories, folder / CONVERGENCE, title, seeds, bands)
    written = [folder / CONVERGENCE]
    for model in report.models:
        if model.gains:
            path = folder / classes_picture(model.label)
            _write_classes(model, report.plan.baseline, path, seeds)
            written.append(path)
    for path in folder.glob(classes_picture("*")):  # of models that are not in the report any more
        if path not in written:
            path.unlink()
    return written


def _write_classes(model: ModelReport, baseline: str, path: Path, seeds: str) -> None:
    purpose = "drawing classes"
    figure = import_extra("matplotlib.figure", "train", purpose).Figure(figsize=(10, 4.4), layout="constrained")
    import_extra("matplotlib.backends.backend_agg", "train", purpose).FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    bars = model.class_intervals
    _scatter(left, model.gains, [100 * each.frequency for each in model.gains], bars)
    ticker = import_extra("matplotlib.ticker", "train", purpose)
    left.set_xscale("log")
    left.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5), numticks=12))
    left.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    left.xaxis.set_minor_formatter(ticker.NullFormatter())
    left.set_xlabel("share of training images that show the class (%)")
    left.set_ylabel("gain of average precision (points)")
    _scatter(right, model.gains, [each.company for each in model.gains], bars)
    right.set_xlabel("other classes in a test image that shows it (mean)")
    title = f"Gain of each class: {model.label} − {baseline}"
    if model.pairs > 1:
        which = "mean and 95 % interval" if bars else "mean"
        title += f", {which} over {model.pairs} seeds"
    figure.suptitle(title, fontsize=12, fontweight="bold", parse_math=False)
    figure.supxlabel(f"seed {seeds}", fontsize=8, color=_GREY, x=0.995, ha="right")
    buffer = io.BytesIO()
    metadata = {"Title": title, "Seed": seeds, "Software": "contextcaps"}
    figure.savefig(buffer, format="png", dpi=120, metadata=metadata, facecolor="white")
    write_atomically(path, buffer.getvalue())


def _scatter(axes: Any, gains: tuple[ClassGain, ...], places: list[float], bars: bool) -> None:
    values = [100 * each.gain.value for each in gains]
    # The window shows all means; intervals of few seeds may reach far beyond it.
    room = 0.35 * (max(values) - min(values)) + 1
    low, high = min(values) - room, max(values) + room
    for each, place, value in zip(gains, places, values, strict=True):
        colour = _UP if value > 0 else _DOWN
        if bars and each.gain.low == each.gain.low:  # not NaN
            axes.plot([place] * 2, [100 * each.gain.low, 100 * each.gain.high], color=colour, alpha=0.25, linewidth=1.2)
        axes.plot([place], [value], "o", color=colour, markersize=4.5)
    named = [*range(min(_NAMED, len(gains))), *range(max(_NAMED, len(gains) - _NAMED), len(gains))]
    for index in named:
        axes.annotate(
            gains[index].name,
            (places[index], values[index]),
            xytext=(5, 4),
            textcoords="offset points",
            fontsize=8,
            color="#333333",
            parse_math=False,
        )
    axes.axhline(0, color=_GREY, linewidth=1)
    axes.set_ylim(low, high)
    axes.grid(color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)

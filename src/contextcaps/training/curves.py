"""Charts of training: one run's loss and mAP by epoch, and several runs' mAP in one frame."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextcaps.documents import charts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["History", "write_convergence", "write_curves"]

History = Sequence[Mapping[str, Any]]
"""One dictionary for each epoch: `epoch`, `train_loss`, `val_loss`, `val_mAP`, `prior_mAP`, …; any may miss or be NaN.

Losses as they are, mAP from 0 to 1."""

_IN_THE_FRAME = 6  # runs; the legend of more stands beside it
_MARKED_EPOCHS = 30  # beyond, points run into each other and the line says it all


def write_curves(history: History, path: Path | str, title: str, seed: int) -> None:
    """Draw one run: loss on the training and validation part, and validation mAP with its best epoch, as PNG.

    Args:
        history: of the run.
        path: the file; it is replaced whole or not at all.
        title: such as the model and the data.
        seed: of the run, for the caption and the file's metadata.
    """
    with charts.picture(Path(path), 10, 4.2, {"Title": title, "Seed": str(seed)}) as figure:
        losses, precisions = figure.subplots(1, 2)
        points = _points(history, "val_mAP", 100)
        for axes, drawn, label, number in (
            (precisions, points, "validation", 1),
            (losses, _points(history, "train_loss"), "training", 0),
            (losses, _points(history, "val_loss"), "validation", 1),
        ):
            if drawn:
                charts.draw_curve(axes, drawn, label, number, marker=_marker(drawn, "o"))
        if points:
            epoch, value = _best(points, dict(_points(history, "val_loss")))
            _draw_star(precisions, epoch, value, 1, f"best: {value:.1f}, epoch {epoch:g}")
            label = f"best mAP: epoch {epoch:g}"
            losses.axvline(epoch, color=charts.MUTED, linewidth=1.4, linestyle=":", zorder=0, label=label)
        _finish(losses, history, "Loss", "loss per image")
        _draw_prior(precisions, [history])
        _finish(precisions, history, "Mean average precision", "macro mAP (%)", from_zero=True)
        charts.frame(figure, title, f"seed {seed}")


def write_convergence(
    histories: Mapping[str, History],
    path: Path | str,
    title: str,
    seed: int | str,
    bands: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
) -> None:
    """Draw several runs: validation mAP by epoch, each with its best epoch, as PNG.

    Args:
        histories: name → history; the order is that of the legend.
        path: the file; it is replaced whole or not at all.
        title: such as the data.
        seed: of the runs, for the caption and the file's metadata; several in words, such as "0, 1, 2".
        bands: name → (epoch, lowest, highest) mAP, drawn behind its line; such as the range over seeds.
    """
    many = len(histories) > _IN_THE_FRAME
    with charts.picture(Path(path), 11 if many else 8, 4.8, {"Title": title, "Seed": str(seed)}) as figure:
        axes = figure.subplots()
        for number, (name, history) in enumerate(histories.items()):
            points = _points(history, "val_mAP", 100)
            band = [(epoch, 100 * low, 100 * high) for epoch, low, high in (bands or {}).get(name, ())]
            epoch, value = _best(points) if points else (0.0, math.nan)
            label = f"{name} (best: {value:.1f}, epoch {epoch:g})" if points else f"{name} (no results)"
            marker = _marker(points, charts.MARKERS[number % len(charts.MARKERS)])
            charts.draw_curve(axes, points, label, number, band, marker)
            if points:
                _draw_star(axes, epoch, value, number)
        _draw_prior(axes, list(histories.values()))
        everything = [entry for history in histories.values() for entry in history]
        _finish(axes, everything, "", "validation macro mAP (%)", from_zero=True, beside=many)
        charts.frame(figure, title, f"seed {seed}")


def _best(points: Sequence[tuple[float, float]], losses: Mapping[float, float] | None = None) -> tuple[float, float]:
    """Return the highest point; of several that with the lowest loss, or the first, as a run chooses its epoch."""
    losses = losses or {}
    return max(points, key=lambda point: (point[1], -losses.get(point[0], math.inf), -point[0]))


def _marker(points: Sequence[tuple[float, float]], marker: str) -> str | None:
    return marker if len(points) <= _MARKED_EPOCHS else None


def _draw_star(axes: "Axes", epoch: float, value: float, number: int, label: str | None = None) -> None:
    colour = charts.COLOURS[number % len(charts.COLOURS)]
    axes.plot([epoch], [value], "*", color=colour, markersize=14, markeredgecolor="white", zorder=4, label=label)


def _points(history: History, key: str, factor: float = 1) -> list[tuple[float, float]]:
    """Return (epoch, value) wherever there is a finite value; an entry without an epoch counts from 1."""
    points = []
    for index, entry in enumerate(history):
        value = entry.get(key)
        if value is not None and value != "" and math.isfinite(float(value)):
            points.append((float(entry.get("epoch", index + 1)), factor * float(value)))
    return points


def _draw_prior(axes: "Axes", histories: Sequence[History]) -> None:
    """Draw the mAP of the constant label prior, once for all runs on the same validation part."""
    values = {round(point[1], 6) for history in histories for point in _points(history, "prior_mAP", 100)}
    ends = _ends([entry for history in histories for entry in history])
    for index, value in enumerate(sorted(values)):
        label = f"constant prior: {value:.1f}" if len(values) == 1 else "constant priors"
        # Not axhline, which the legend does not keep clear of.
        look: dict[str, Any] = {"color": charts.MUTED, "linestyle": "--", "linewidth": 1.4}
        axes.plot(ends, [value] * 2, label=None if index else label, **look)


def _ends(history: History) -> tuple[float, float]:
    """Return the ends of the axis of epochs."""
    epochs = [float(entry.get("epoch", index + 1)) for index, entry in enumerate(history)] or [1.0]
    return min(epochs) - 0.5, max(epochs) + max(0.5, 0.02 * (max(epochs) - min(epochs)))


def _finish(
    axes: "Axes", history: History, title: str, quantity: str, from_zero: bool = False, beside: bool = False
) -> None:
    """Add title, axes, grid and legend, which stands inside the frame or beside it."""
    axes.set_xlim(*_ends(history))
    axes.xaxis.set_major_locator(charts.import_ticker().MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch")
    axes.set_ylabel(quantity)
    if title:
        axes.set_title(title, fontsize=11)
    low, high = axes.get_ylim()
    # At least a tenth of the value: an axis that fits one epoch's values makes a hair's breadth look like a gap.
    room = max(0.0, 0.1 * abs(high) - (high - low)) / 2
    axes.set_ylim(*(0, max(1.06 * high, 1)) if from_zero else (low - room, high + room))
    charts.plain_axes(axes)
    if axes.get_legend_handles_labels()[0]:
        look: dict[str, Any] = {"frameon": True, "framealpha": 0.9, "edgecolor": "none", "fontsize": 9}
        look |= (
            {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "handlelength": 3.6} if beside else {"loc": "best"}
        )
        axes.legend(**look)
    else:
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", va="center", color=charts.MUTED)

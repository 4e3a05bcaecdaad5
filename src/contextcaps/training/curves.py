"""Pictures of training: one run's loss and mAP by epoch, and several runs' mAP in one frame."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contextcaps.atomic import write_atomically
from contextcaps.extras import import_extra

__all__ = ["History", "write_convergence", "write_curves"]

History = Sequence[Mapping[str, Any]]
"""One dictionary for each epoch: `epoch`, `train_loss`, `val_loss`, `val_mAP`, `prior_mAP`, …; any may miss or be NaN.

Losses as they are, mAP from 0 to 1."""

# Okabe and Ito's colours, which people with any colour vision can tell apart; yellow, too light on white, is left out.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_STYLES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))  # for more runs than there are colours
_IN_THE_FRAME = 6  # runs; the legend of more stands beside it
_GREY = "#666666"
_MARKED_EPOCHS = 30  # beyond, points run into each other and the line says it all


def write_curves(history: History, path: Path | str, title: str, seed: int) -> None:
    """One run: loss of the training and validation part, and validation mAP with its best epoch, as PNG.

    Args:
        history: of the run.
        path: the file; it is replaced whole or not at all.
        title: such as the model and the data.
        seed: of the run, for the caption and the file's metadata.
    """
    figure = _figure(10, 4.2)
    losses, precisions = figure.subplots(1, 2)
    points = _points(history, "val_mAP", 100)
    _draw(precisions, points, "validation", 1)
    for key, label, colour in (("train_loss", "training", 0), ("val_loss", "validation", 1)):
        _draw(losses, _points(history, key), label, colour)
    best = max(points, key=lambda point: (point[1], -point[0]), default=None)
    if best is not None:
        epoch, value = best
        label = f"best: {value:.1f}, epoch {epoch:g}"
        precisions.plot([epoch], [value], "*", color=_COLOURS[1], markersize=15, markeredgecolor="white", label=label)
        losses.axvline(epoch, color=_GREY, linewidth=1.4, linestyle=":", zorder=0, label=f"best mAP: epoch {epoch:g}")
    _finish(losses, history, "Loss", "loss per image")
    _draw_prior(precisions, [history])
    _finish(precisions, history, "Mean average precision", "macro mAP (%)", from_zero=True)
    _write(figure, Path(path), title, seed)


def write_convergence(
    histories: Mapping[str, History],
    path: Path | str,
    title: str,
    seed: int | str,
    bands: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
) -> None:
    """Several runs: validation mAP by epoch, each with its best epoch, as PNG.

    Args:
        histories: name → history; the order is that of the legend.
        path: the file; it is replaced whole or not at all.
        title: such as the data.
        seed: of the runs, for the caption and the file's metadata; several in words, such as "0, 1, 2".
        bands: name → (epoch, lowest, highest) mAP, drawn behind its line; such as the range over seeds.
    """
    many = len(histories) > _IN_THE_FRAME
    figure = _figure(11 if many else 8, 4.8)
    axes = figure.subplots()
    for index, (name, history) in enumerate(histories.items()):
        points = _points(history, "val_mAP", 100)
        epoch, value = max(points, key=lambda point: (point[1], -point[0]), default=(0, math.nan))
        label = f"{name} (best: {value:.1f}, epoch {epoch:g})" if points else f"{name} (no results)"
        _draw(axes, points, label, index, marker=_MARKERS[index % len(_MARKERS)], keep=True)
        if bands and bands.get(name):
            epochs, low, high = zip(*bands[name], strict=True)
            edges = ([100 * value for value in low], [100 * value for value in high])
            axes.fill_between(epochs, *edges, color=_colour(index), alpha=0.16, linewidth=0)
        if points:
            axes.plot([epoch], [value], "*", color=_colour(index), markersize=14, markeredgecolor="white", zorder=4)
    _draw_prior(axes, list(histories.values()))
    everything = [entry for history in histories.values() for entry in history]
    _finish(axes, everything, "", "validation macro mAP (%)", from_zero=True, beside=many)
    _write(figure, Path(path), title, seed)


def _points(history: History, key: str, factor: float = 1) -> list[tuple[float, float]]:
    """(epoch, value) wherever there is a finite value; an entry without an epoch counts from 1."""
    points = []
    for index, entry in enumerate(history):
        value = entry.get(key)
        if value is not None and value != "" and math.isfinite(float(value)):
            points.append((float(entry.get("epoch", index + 1)), factor * float(value)))
    return points


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _figure(width: float, height: float) -> Any:
    """An empty figure that needs no screen, and leaves the user's own matplotlib settings alone."""
    purpose = "drawing curves"
    figure = import_extra("matplotlib.figure", "train", purpose).Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # inches
    import_extra("matplotlib.backends.backend_agg", "train", purpose).FigureCanvasAgg(figure)
    return figure


def _draw(
    axes: Any, points: list[tuple[float, float]], label: str, colour: int, marker: str = "o", keep: bool = False
) -> None:
    """A line through the points; without points nothing, or with `keep` its entry in the legend."""
    if not points and not keep:
        return
    axes.plot(
        [epoch for epoch, _ in points],
        [value for _, value in points],
        color=_colour(colour),
        linestyle=_STYLES[colour // len(_COLOURS) % len(_STYLES)],
        linewidth=2,
        marker=marker if len(points) <= _MARKED_EPOCHS else "",
        markersize=5,
        label=label,
    )


def _draw_prior(axes: Any, histories: Sequence[History]) -> None:
    """The mAP of the constant label prior, once for all runs on the same validation part."""
    values = {round(point[1], 6) for history in histories for point in _points(history, "prior_mAP", 100)}
    ends = _ends([entry for history in histories for entry in history])
    for index, value in enumerate(sorted(values)):
        label = f"constant prior: {value:.1f}" if len(values) == 1 else "constant priors"
        # Not axhline, which the legend does not keep clear of.
        axes.plot(ends, [value] * 2, color=_GREY, linestyle="--", linewidth=1.4, label=label if index == 0 else None)


def _ends(history: History) -> tuple[float, float]:
    """Of the axis of epochs."""
    epochs = [float(entry.get("epoch", index + 1)) for index, entry in enumerate(history)] or [1.0]
    return min(epochs) - 0.5, max(epochs) + max(0.5, 0.02 * (max(epochs) - min(epochs)))


def _finish(
    axes: Any, history: History, title: str, quantity: str, from_zero: bool = False, beside: bool = False
) -> None:
    """Title, axes, grid and legend, which stands inside the frame or beside it."""
    ticker = import_extra("matplotlib.ticker", "train", "drawing curves")
    axes.set_xlim(*_ends(history))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch")
    axes.set_ylabel(quantity)
    if title:
        axes.set_title(title, fontsize=11)
    low, high = axes.get_ylim()
    # At least a tenth of the value: an axis that fits one epoch's values makes a hair's breadth look like a gap.
    room = max(0.0, 0.1 * abs(high) - (high - low)) / 2
    axes.set_ylim(*(0, max(1.06 * high, 1)) if from_zero else (low - room, high + room))
    axes.grid(color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        labels = [label.replace("$", r"\$") for label in labels]  # no mathematics in a run's name
        look: dict[str, Any] = {"frameon": True, "framealpha": 0.9, "edgecolor": "none", "fontsize": 9}
        look |= (
            {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "handlelength": 3.6} if beside else {"loc": "best"}
        )
        axes.legend(handles, labels, **look)
    else:
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", va="center", color=_GREY)


def _write(figure: Any, path: Path, title: str, seed: int | str) -> None:
    """Write the figure with title and caption, whole or not at all."""
    figure.suptitle(title, fontsize=13, fontweight="bold", wrap=True, parse_math=False)
    figure.supxlabel(f"seed {seed}", fontsize=8, color=_GREY, x=0.995, ha="right")
    buffer = io.BytesIO()
    metadata = {"Title": title, "Seed": str(seed), "Software": "contextcaps"}
    figure.savefig(buffer, format="png", dpi=120, metadata=metadata, facecolor="white")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())

"""A sweep as a picture: time and memory of each way against B, K or J, both axes logarithmic."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from contextcaps.experiments.bench.rows import Row
from contextcaps.experiments.bench.sweeps import Line, Sweep
from contextcaps.experiments.bench.ways import Way
from contextcaps.extras import import_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_sweep"]

_COLOURS: dict[Way, str] = {"eager": "#6b7280", "compiled": "#d97706", "fused": "#2563a8", "lean": "#15803d"}
_MARKERS: dict[Way, str] = {"eager": "o", "compiled": "s", "fused": "D", "lean": "^"}
_INK, _MUTED, _GRID = "#1f2937", "#566273", "#e3e7ed"
_MEANS = {"B": "images in the batch", "K": "primary capsules", "J": "classes"}


def draw_sweep(sweep: Sweep, caption: str) -> "Figure":
    """A row for each head, time on the left and memory on the right; matplotlib's global state is not touched."""
    purpose = "plots of a sweep"
    figure_class = import_extra("matplotlib.figure", "train", purpose).Figure
    font = {"font.family": "DejaVu Sans", "font.size": 10, "text.parse_math": False}
    with import_extra("matplotlib", "train", purpose).rc_context(font):
        heads = list(dict.fromkeys(line.head for line in sweep.lines))
        figure = figure_class(figsize=(10.5, 1.5 + 3.4 * max(1, len(heads))), layout="constrained")
        grid = figure.subplots(max(1, len(heads)), 2, squeeze=False, sharex=True)
        for head, (left, right) in zip(heads, grid, strict=True):
            lines = [line for line in sweep.lines if line.head == head]
            _draw(left, sweep, lines, memory=False)
            _draw(right, sweep, lines, memory=True)
            left.set_title(f"{head}: time", loc="left", fontsize=10.5, color=_INK)
            right.set_title(f"{head}: peak memory", loc="left", fontsize=10.5, color=_INK)
        for axes in grid[-1]:
            axes.set_xlabel(f"{sweep.axis}, {_MEANS[sweep.axis]}")
        shown = {label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels())}  # noqa: B905
        figure.legend(
            shown.values(), shown.keys(), loc="outside lower center", ncols=min(5, max(1, len(shown))), frameon=False
        )
        what = "training step" if sweep.mode == "step" else "forward pass"
        figure.suptitle(f"Growth of one {what} of the head with {sweep.axis}\n", x=0.01, ha="left", fontsize=13)
        figure.text(0.012, 0.965 if len(heads) > 1 else 0.935, caption, fontsize=8, color=_MUTED, va="top")
    return figure


def _draw(axes: "Axes", sweep: Sweep, lines: list[Line], memory: bool) -> None:
    def cost(row: Row) -> float:
        return row.peak / 2**20 if memory else 1e3 * row.seconds

    def least(row: Row) -> float:
        return row.result.resident / 2**20 if memory else 1e3 * row.floor

    precisions = list(dict.fromkeys(line.precision for line in sweep.lines))
    ends = []
    for line in lines:
        points = [(value, cost(row)) for value, row in zip(line.values, line.rows, strict=True)]
        points = [(value, each) for value, each in points if math.isfinite(each) and each > 0]
        if not points:
            continue
        ends.append(points[-1])
        dashed = len(precisions) > 1 and line.precision == "fp32"
        axes.plot(
            *zip(*points, strict=True),
            color=_COLOURS[line.way],
            marker=_MARKERS[line.way],
            markersize=4.5,
            linewidth=1.6,
            linestyle=(0, (4, 2)) if dashed else "-",
            label=f"{line.way}, {line.precision}" if len(precisions) > 1 else line.way,
        )
        stopped = [value for value, row in zip(line.values, line.rows, strict=True) if row.result.reason]
        if stopped:  # a cross above the line's end: there it ran out of memory, or failed
            axes.plot(stopped[0], points[-1][1], marker="x", color=_COLOURS[line.way], markersize=8, linestyle="none")
    _draw_floor(axes, lines, least, memory)
    if ends:  # through the cheapest way's last point
        value, height = min(ends, key=lambda end: (-end[0], end[1]))
        first = min(sweep.values)
        reference = ([first, value], [height * first / value, height])
        axes.plot(*reference, color=_MUTED, linestyle=":", linewidth=1.4, label=f"proportional to {sweep.axis}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sweep.values, [f"{value:,}" for value in sweep.values])
    axes.minorticks_on()
    axes.tick_params(axis="x", which="minor", bottom=False)
    ticker = import_extra("matplotlib.ticker", "train", "plots of a sweep")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5), numticks=12))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_ylabel("MiB" if memory else "ms")
    axes.grid(which="major", color=_GRID)
    axes.grid(which="minor", axis="y", color=_GRID, linewidth=0.4)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_floor(axes: "Axes", lines: list[Line], least: Callable[[Row], float], memory: bool) -> None:
    """The bound of the last precision: counted time, and in memory what every way has to hold."""
    if not lines:
        return
    precision = lines[-1].precision
    found = {
        value: least(row)
        for line in lines
        if line.precision == precision
        for value, row in zip(line.values, line.rows, strict=True)
        if row.result.cost is not None
    }
    points = [(value, each) for value, each in sorted(found.items()) if math.isfinite(each) and each > 0]
    if points:
        label = "weights, inputs, gradients" if memory else f"floor, {precision}"
        axes.plot(*zip(*points, strict=True), color=_INK, linewidth=1, linestyle="-." if memory else "--", label=label)

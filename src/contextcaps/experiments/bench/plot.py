"""A sweep as a picture: time and memory of each way against B, K or J, both axes logarithmic."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from contextcaps.documents.charts import INK, MUTED, log_ticks, picture, plain_axes
from contextcaps.experiments.bench.rows import Row
from contextcaps.experiments.bench.settings import MODES
from contextcaps.experiments.bench.sweeps import Line, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write_sweep"]

_LOOKS = {
    "eager": ("#6b7280", "o"),
    "compiled": ("#d97706", "s"),
    "triton": ("#2563a8", "D"),
    "lean": ("#15803d", "^"),
}
"""Way → colour and marker."""
_MEANS = {"B": "images in the batch", "K": "primary capsules", "J": "classes"}


def write_sweep(sweep: Sweep, path: Path, caption: str) -> None:
    """Draw a row for each head, time on the left and memory on the right."""
    heads = list(dict.fromkeys(line.head for line in sweep.lines))
    with picture(path, 10.5, 1.5 + 3.4 * max(1, len(heads)), {"Description": caption}) as figure:
        grid = figure.subplots(max(1, len(heads)), 2, squeeze=False, sharex=True)
        for head, (left, right) in zip(heads, grid, strict=True):
            lines = [line for line in sweep.lines if line.head == head]
            _draw(left, sweep, lines, memory=False)
            _draw(right, sweep, lines, memory=True)
            left.set_title(f"{head}: time", loc="left", fontsize=10.5, color=INK)
            right.set_title(f"{head}: peak memory", loc="left", fontsize=10.5, color=INK)
        for axes in grid[-1]:
            axes.set_xlabel(f"{sweep.axis}, {_MEANS[sweep.axis]}")
        shown = {label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels())}  # noqa: B905
        figure.legend(
            shown.values(), shown.keys(), loc="outside lower center", ncols=min(5, max(1, len(shown))), frameon=False
        )
        figure.suptitle(
            f"Growth of one {MODES[sweep.mode]} of the head with {sweep.axis}\n", x=0.01, ha="left", fontsize=13
        )
        figure.text(0.012, 0.965 if len(heads) > 1 else 0.935, caption, fontsize=8, color=MUTED, va="top")


def _draw(axes: "Axes", sweep: Sweep, lines: list[Line], memory: bool) -> None:
    precisions = list(dict.fromkeys(line.precision for line in sweep.lines))
    ends = []
    for line in lines:
        points = _points([line], lambda row: row.peak / 2**20 if memory else 1e3 * row.seconds)
        if not points:
            continue
        ends.append(points[-1])
        colour, marker = _LOOKS[line.way]
        dashed = len(precisions) > 1 and line.precision == "fp32"
        axes.plot(
            *zip(*points, strict=True),
            color=colour,
            marker=marker,
            markersize=4.5,
            linewidth=1.6,
            linestyle=(0, (4, 2)) if dashed else "-",
            label=f"{line.way}, {line.precision}" if len(precisions) > 1 else line.way,
        )
        stopped = [value for value, row in line.rows.items() if row.reason]
        if stopped:  # a cross above the line's end: there it ran out of memory, or failed
            axes.plot(stopped[0], points[-1][1], marker="x", color=colour, markersize=8, linestyle="none")
    _draw_bound(axes, lines, memory)
    if ends:  # through the cheapest way's last point
        value, height = min(ends, key=lambda end: (-end[0], end[1]))
        first = min(sweep.values)
        reference = ([first, value], [height * first / value, height])
        axes.plot(*reference, color=MUTED, linestyle=":", linewidth=1.4, label=f"proportional to {sweep.axis}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sweep.values, [f"{value:,}" for value in sweep.values])
    axes.minorticks_on()
    axes.tick_params(axis="x", which="minor", bottom=False)
    log_ticks(axes.yaxis)
    axes.set_ylabel("MiB" if memory else "ms")
    plain_axes(axes)


def _draw_bound(axes: "Axes", lines: list[Line], memory: bool) -> None:
    """Draw the bound of the last precision: the counted time, and in memory what every way has to hold."""
    precision = lines[-1].precision
    alike = [line for line in lines if line.precision == precision]
    points = _points(alike, lambda row: row.resident / 2**20 if memory else 1e3 * row.floor)
    if points:
        label = "weights, inputs, gradients" if memory else f"floor, {precision}"
        axes.plot(*zip(*points, strict=True), color=INK, linewidth=1, linestyle="-." if memory else "--", label=label)


def _points(lines: Iterable[Line], height: Callable[[Row], float]) -> list[tuple[int, float]]:
    """Return (size, height) of what ran, in order, each size once."""
    found = {value: height(row) for line in lines for value, row in line.rows.items() if row.has_run}
    return [(value, each) for value, each in sorted(found.items()) if math.isfinite(each) and each > 0]

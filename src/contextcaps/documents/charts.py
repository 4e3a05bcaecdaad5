"""The look of all charts, which matplotlib (extra `train`) draws, and how they are written.

Nothing of matplotlib's global state is touched, no screen is needed, and a `$` in a name begins no mathematics.
"""

import contextlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from contextcaps.atomic import write_atomically
from contextcaps.documents.formats import Interval, shortened
from contextcaps.extras import import_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BAD",
    "COLOURS",
    "GOOD",
    "GRID",
    "INK",
    "MARKERS",
    "MODEL",
    "MUTED",
    "PRIOR",
    "caption_lines",
    "draw_curve",
    "draw_intervals",
    "frame",
    "import_ticker",
    "legend_above",
    "log_ticks",
    "picture",
    "plain_axes",
    "write_figure",
]

# Okabe and Ito's colours, which people with any colour vision can tell apart; yellow, too light on white, is left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MODEL, PRIOR, GOOD, BAD = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[1]
INK, MUTED, GRID = "#1f2937", "#566273", "#e3e7ed"
_LINES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))  # for more curves than there are colours
_SETTINGS = {"font.family": "DejaVu Sans", "font.size": 10, "text.parse_math": False}


@contextlib.contextmanager
def picture(
    path: Path, width: float, height: float, metadata: Mapping[str, str], layout: str | None = "constrained"
) -> Iterator["Figure"]:
    """Give an empty figure to draw into, and write it as PNG in the end, whole or not at all.

    Args:
        path: the file; its folder is made if need be.
        width, height: of the figure, in inches.
        metadata: what the file says of itself, such as Title and Seed.
        layout: matplotlib's layout engine; None where everything is given a place by hand.
    """
    purpose = "drawing charts"
    with import_extra("matplotlib", "train", purpose).rc_context(_SETTINGS):
        figure = import_extra("matplotlib.figure", "train", purpose).Figure(figsize=(width, height), layout=layout)
        import_extra("matplotlib.backends.backend_agg", "train", purpose).FigureCanvasAgg(figure)
        if layout == "constrained":
            figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # inches
        yield figure
        write_figure(figure, path, metadata)


def write_figure(figure: "Figure", path: Path, metadata: Mapping[str, str]) -> None:
    """Write a figure as PNG, whole or not at all."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, facecolor="white", metadata={"Software": "contextcaps", **metadata})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())


def frame(figure: "Figure", title: str, caption: str) -> None:
    """Put a title above and facts below."""
    figure.suptitle(title, fontsize=12, color=INK, x=0.02, ha="left")
    figure.supxlabel(caption, fontsize=7.5, color=MUTED, x=0.02, ha="left")


def caption_lines(facts: Mapping[str, object], *more: str, width: int = 100) -> str:
    """Return facts as a caption, in lines that end between two of them."""
    lines = [""]
    for text in (*(f"{name}: {shortened(str(value), 60)}" for name, value in facts.items()), *more):
        if lines[-1] and len(lines[-1]) + len(text) > width:
            lines.append(text)
        else:
            lines[-1] += f"   ·   {text}" if lines[-1] else text
    return "\n".join(lines)


def plain_axes(axes: "Axes", grid: Literal["both", "x", "y"] = "both") -> None:
    """Draw the grid behind everything, along `x`, `y` or `both`, and no lines on top and right."""
    axes.grid(axis=grid, color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend_above(axes: "Axes", columns: int = 1, lift: float = 1.0, **given: Any) -> None:
    """Put the legend above the axes, where no curve can be behind it."""
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


def log_ticks(axis: Any, between: Sequence[int] = (1, 2, 5)) -> None:
    """Write 1, 2, 5, 10, … along a logarithmic axis, as plain numbers: matplotlib's own would be mathematics."""
    ticker = import_ticker()
    axis.set_major_locator(ticker.LogLocator(subs=between, numticks=12))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def import_ticker() -> Any:
    """Return `matplotlib.ticker`."""
    return import_extra("matplotlib.ticker", "train", "drawing charts")


def draw_curve(
    axes: "Axes",
    points: Sequence[tuple[float, float]],
    label: str,
    number: int,
    band: Sequence[tuple[float, float, float]] = (),
    marker: str | None = None,
) -> None:
    """Draw a curve that differs from those of other numbers.

    Args:
        axes: where.
        points: (x, y), in order.
        label: for the legend.
        number: of the curve, which gives its colour and line.
        band: (x, lowest y, highest y), drawn behind it; such as the range over seeds.
        marker: of its points; None for none.
    """
    colour = COLOURS[number % len(COLOURS)]
    if band:
        places, low, high = zip(*band, strict=True)
        axes.fill_between(places, low, high, color=colour, alpha=0.16, linewidth=0)
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=colour,
        linestyle=_LINES[number // len(COLOURS) % len(_LINES)],
        linewidth=2,
        marker=marker or "",
        markersize=5,
        label=label,
    )


def draw_intervals(axes: "Axes", places: Sequence[float], estimates: Sequence[Interval], **look: Any) -> None:
    """Draw shares in percent at their places, each with its interval."""
    values = [100 * each.value for each in estimates]
    # A basic bootstrap interval need not hold its value where few images show a class.
    reach = [
        [max(0.0, value - 100 * each.low) for value, each in zip(values, estimates, strict=True)],
        [max(0.0, 100 * each.high - value) for value, each in zip(values, estimates, strict=True)],
    ]
    known = [math.isfinite(value) and math.isfinite(end) for value, end in zip(values, reach[1], strict=True)]
    errors = [[end if is_known else 0.0 for end, is_known in zip(ends, known, strict=True)] for ends in reach]
    axes.errorbar(places, values, yerr=errors, linewidth=1.8, markersize=6, capsize=3, elinewidth=1, **look)

"""The measurements as tables: for the terminal and in Markdown."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from contextcaps.experiments.bench.rows import NetworkRow, Ratio, Row, Rows
from contextcaps.experiments.bench.settings import Mode
from contextcaps.experiments.bench.sizes import AXES, Size
from contextcaps.experiments.bench.sweeps import Sweep

__all__ = ["Grid", "mebibytes", "milliseconds", "network_grids", "size_grids", "sweep_grid"]

_MODES: dict[Mode, str] = {"forward": "forward pass", "step": "training step"}
_TEXT_COLUMNS = 3  # the first ones; the others are figures


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table that can be shown in several forms."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        rule = ["---" if index < _TEXT_COLUMNS else "---:" for index in range(len(self.headings))]
        lines = [f"| {' | '.join(row)} |" for row in (self.headings, rule, *self.rows)]
        return "\n".join([f"## {self.title}", "", *lines, *(f"\n- {note}" for note in self.notes)]) + "\n"

    def table(self) -> Table:
        table = Table(
            title=self.title,
            title_justify="left",
            caption="\n".join(self.notes) or None,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 0, 0, 1),
            show_edge=False,
        )
        for index, heading in enumerate(self.headings):
            # A word below the other: ten columns have to fit.
            table.add_column(
                heading.replace(" ", "\n") if index >= _TEXT_COLUMNS else heading,
                justify="left" if index < _TEXT_COLUMNS else "right",
                no_wrap=True,
                vertical="bottom",
            )
        previous = None
        for row in self.rows:
            if previous is not None and row[0] != previous:
                table.add_section()
            previous = row[0]
            table.add_row(*map(Text, row))
        return table


def size_grids(rows: Rows, sizes: Sequence[Size], modes: Sequence[Mode]) -> list[Grid]:
    """A table for each size and mode: what each way costs, and how many times less that is than others'."""
    grids = []
    for size in sizes:
        for mode in modes:
            found = [row for row in rows.values() if row.case.size == size and row.case.mode == mode]
            if found:
                grids.append(_size_grid(rows, found, f"{size.name}, {_MODES[mode]}: {size.words()}"))
    return grids


def _size_grid(rows: Rows, found: Sequence[Row], title: str) -> Grid:
    both = len({row.case.precision for row in found}) > 1
    headings = ["head", "way", "", "ms", "peak, MiB", "beyond, MiB", "images/s", "eager : this"]
    headings += ["eager fp32 : this"] if both else []
    headings += ["compiled : this", "floor, ms", "share, %"]
    cells = []
    for row in found:
        case = row.case
        start = [case.head, case.way, case.precision]
        if row.result.cost is None:
            told = "out of memory" if row.result.reason.startswith("out of memory") else "none"
            cells.append((*start, told, *["–"] * (len(headings) - 6), milliseconds(row.floor), "–"))
            continue
        ratios = [rows.ratio(row, "eager")]
        ratios += [rows.ratio(row, "eager", "fp32")] if both else []
        ratios += [rows.ratio(row, "compiled")]
        figures = [milliseconds(row.seconds), mebibytes(row.peak), mebibytes(row.beyond)]
        figures += [f"{row.images_per_second:,.0f}"]
        share = _digits(100 * row.floor_share)
        cells.append((*start, *figures, *map(_ratio, ratios), milliseconds(row.floor), share))
    return Grid(title, tuple(headings), tuple(cells), tuple(_reasons((_name(row), row.result.reason) for row in found)))


def sweep_grid(sweep: Sweep) -> Grid:
    """A sweep's times, and the exponents with which time and memory grow."""
    values = [f"{sweep.axis} {value}" for value in sweep.values]
    headings = ("head", "way", "", *values, "time ~", "at the end", "memory ~", "at the end")
    cells = []
    for line in sweep.lines:
        at = dict(zip(line.values, line.rows, strict=True))
        times = [_time_or_reason(at.get(value)) for value in sweep.values]
        growth = [line.growth(cost, last) for cost in (_seconds, _peak) for last in (None, 2)]
        powers = [f"{sweep.axis}^{each:.2f}" if math.isfinite(each) else "–" for each in growth]
        cells.append((line.head, line.way, line.precision, *times, *powers))
    found = [row for line in sweep.lines for row in line.rows]
    reasons = _reasons((f"{_name(row)}", row.result.reason) for row in found)
    base = sweep.base.words().replace(
        f"{sweep.axis} {getattr(sweep.base, AXES[sweep.axis])}", f"{sweep.axis} as below", 1
    )
    title = f"Growth with {sweep.axis}, {_MODES[sweep.mode]}: {base}"
    return Grid(title, headings, tuple(cells), ("In ms. At the end: between the two largest sizes that ran.", *reasons))


def network_grids(rows: Sequence[NetworkRow]) -> list[Grid]:
    """A table of whole networks for each backbone and mode; ratios are against the first one of the same precision."""
    grids = []
    groups: dict[tuple[str, int, Mode], list[NetworkRow]] = {}
    for row in rows:
        groups.setdefault((row.case.backbone, row.case.image_size, row.case.mode), []).append(row)
    for (backbone, side, mode), group in groups.items():
        first = {row.case.precision: row for row in reversed(group)}
        cells = []
        for row in group:
            start = (row.case.model, row.case.precision, "")
            cost, base = row.result.cost, first[row.case.precision].result.cost
            if cost is None:
                cells.append((*start, _time_or_reason(row), "–", "–", "–"))
                continue
            ratio = None if base is None else Ratio(cost.seconds / base.seconds, cost.peak / base.peak)
            rate = f"{row.case.batch / cost.seconds:,.0f}"
            cells.append((*start, milliseconds(cost.seconds), mebibytes(cost.peak), rate, _ratio(ratio)))
        case = group[0].case
        title = f"Networks on {backbone} at {side} px, {_MODES[mode]}: B {case.batch}, J {case.classes}"
        headings = ("network", "precision", "", "ms", "peak, MiB", "images/s", f"this : {case.model}")
        reasons = _reasons((f"{row.case.model}, {row.case.precision}", row.result.reason) for row in group)
        grids.append(Grid(title, headings, tuple(cells), tuple(reasons)))
    return grids


def milliseconds(seconds: float) -> str:
    """Seconds in ms, with three digits that count; a dash where there are none.

    >>> milliseconds(0.00512), milliseconds(2.5)
    ('5.12', '2,500')
    """
    return _digits(1e3 * seconds)


def mebibytes(count: float) -> str:
    """Bytes in MiB."""
    return f"{count / 2**20:,.0f}" if math.isfinite(count) else "–"


def _digits(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    decimals = 3 if value < 0.01 else min(3, max(0, 2 - math.floor(math.log10(value))))
    return f"{value:,.{decimals}f}"


def _ratio(ratio: Ratio | None) -> str:
    """Of times and of memories."""
    if ratio is None:
        return "–"
    return ", ".join(f"{each:.1f}" if math.isfinite(each) else "–" for each in (ratio.time, ratio.memory))


def _seconds(row: Row) -> float:
    return row.seconds


def _peak(row: Row) -> float:
    return row.peak


def _time_or_reason(row: Row | NetworkRow | None) -> str:
    if row is None:
        return "–"
    if row.result.cost is not None:
        return milliseconds(row.seconds)
    return "out of memory" if row.result.reason.startswith("out of memory") else "none"


def _name(row: Row) -> str:
    return f"{row.case.head}, {row.case.way}, {row.case.precision}"


def _reasons(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Why something has no figures, each reason once."""
    by_reason: dict[str, dict[str, None]] = {}
    for name, reason in rows:
        if reason and reason != "out of memory":
            by_reason.setdefault(reason, {})[name] = None
    return [f"{'; '.join(names)}: {reason}" for reason, names in by_reason.items()]

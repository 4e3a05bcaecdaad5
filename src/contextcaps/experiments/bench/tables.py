"""The measurements as tables."""

import itertools
import math
from collections.abc import Iterable, Sequence

from contextcaps.documents import MISSING, Column, Section, Table, number, significant
from contextcaps.experiments.bench.networks import NetworkCase
from contextcaps.experiments.bench.results import Ratio, Row, Rows
from contextcaps.experiments.bench.settings import Mode
from contextcaps.experiments.bench.sizes import AXES, Size
from contextcaps.experiments.bench.sweeps import Sweep
from contextcaps.experiments.bench.ways import Case

__all__ = ["mebibytes", "milliseconds", "network_tables", "size_tables", "sweep_table"]

_MODES: dict[Mode, str] = {"forward": "forward pass", "step": "training step"}


def milliseconds(seconds: float) -> str:
    """Return seconds in ms, with three digits that count.

    >>> milliseconds(0.00512), milliseconds(2.5)
    ('5.12', '2,500')
    """
    return significant(1e3 * seconds)


def mebibytes(count: float) -> str:
    """Return bytes in MiB."""
    return number(count / 2**20)


def _share(value: float) -> str:
    return significant(100 * value)


def _ratios(ratio: Ratio) -> str:
    """Return the ratios of times and of memories."""
    return f"{number(ratio.time, 1)}, {number(ratio.memory, 1)}"


def size_tables(rows: Rows, sizes: Sequence[Size], modes: Sequence[Mode]) -> list[Table]:
    """Return a table for each size and mode: what each way costs, and how many times less that is than others'."""
    tables = []
    for size in sizes:
        for mode in modes:
            found = [row for row in rows.values() if row.case.size == size and row.case.mode == mode]
            if found:
                tables.append(_size_table(rows, found, f"{size.name}, {_MODES[mode]}: {size.words()}"))
    return tables


def _size_table(rows: Rows, found: Sequence[Row[Case]], title: str) -> Table:
    both = len({row.case.precision for row in found}) > 1
    columns = [
        *(Column(heading, align="left") for heading in ("head", "way", "")),
        Column("ms", milliseconds),
        Column("peak, MiB", mebibytes),
        Column("beyond, MiB", mebibytes),
        Column("images/s", number),
        Column("eager : this", _ratios),
        *([Column("eager fp32 : this", _ratios)] if both else []),
        Column("compiled : this", _ratios),
        Column("floor, ms", milliseconds),
        Column("share, %", _share),
    ]
    cells: list[tuple[object, ...] | Section] = []
    for head, group in itertools.groupby(found, key=lambda row: row.case.head):
        cells.append(Section())
        for row in group:
            ratios = [rows.ratio(row, "eager"), *([rows.ratio(row, "eager", "fp32")] if both else [])]
            figures = (_time(row), row.peak, row.beyond, row.images_per_second, *ratios, rows.ratio(row, "compiled"))
            cells.append((head, row.case.way, row.case.precision, *figures, row.floor, row.floor_share))
    return Table(title, tuple(columns), cells, _reasons((_name(row), row) for row in found))


def sweep_table(sweep: Sweep) -> Table:
    """Return a sweep's times, and the exponents with which time and memory grow."""

    def power(exponent: float) -> str:
        return f"{sweep.axis}^{exponent:.2f}" if math.isfinite(exponent) else MISSING

    columns = (
        *(Column(heading, align="left") for heading in ("head", "way", "")),
        *(Column(f"{sweep.axis} {value}", milliseconds) for value in sweep.values),
        *(Column(heading, power) for heading in ("time ~", "at the end", "memory ~", "at the end")),
    )
    cells = []
    for line in sweep.lines:
        at = dict(zip(line.values, line.rows, strict=True))
        times = [_time(at[value]) if value in at else None for value in sweep.values]
        costs = (lambda row: row.seconds, lambda row: row.peak)
        growth = [line.growth(cost, last) for cost in costs for last in (None, 2)]
        cells.append((line.head, line.way, line.precision, *times, *growth))
    base = sweep.base.words().replace(
        f"{sweep.axis} {getattr(sweep.base, AXES[sweep.axis])}", f"{sweep.axis} as below", 1
    )
    reasons = _reasons((_name(row), row) for line in sweep.lines for row in line.rows)
    note = "In ms. At the end: between the two largest sizes that ran."
    return Table(f"Growth with {sweep.axis}, {_MODES[sweep.mode]}: {base}", columns, cells, (note, *reasons))


def network_tables(rows: Sequence[Row[NetworkCase]]) -> list[Table]:
    """Return a table of networks for each backbone and mode; ratios are to the first one of the same precision."""
    tables = []
    groups: dict[tuple[str, int, Mode], list[Row[NetworkCase]]] = {}
    for row in rows:
        groups.setdefault((row.case.backbone, row.case.image_size, row.case.mode), []).append(row)
    for (backbone, side, mode), group in groups.items():
        case, first = group[0].case, {row.case.precision: row for row in reversed(group)}
        columns = (
            *(Column(heading, align="left") for heading in ("network", "precision")),
            Column("ms", milliseconds),
            Column("peak, MiB", mebibytes),
            Column("images/s", number),
            Column(f"this : {case.model}", _ratios),
        )
        cells = []
        for row in group:
            ratio = Ratio.between(row, first[row.case.precision])
            cells.append((row.case.model, row.case.precision, _time(row), row.peak, row.images_per_second, ratio))
        title = f"Networks on {backbone} at {side} px, {_MODES[mode]}: B {case.batch}, J {case.classes}"
        reasons = _reasons((f"{row.case.model}, {row.case.precision}", row) for row in group)
        tables.append(Table(title, columns, cells, reasons))
    return tables


def _time(row: Row) -> float | str:
    """Return the seconds, or in a word why there are none."""
    if row.result.cost is not None:
        return row.seconds
    return "out of memory" if row.result.out_of_memory else "none"


def _name(row: Row[Case]) -> str:
    return f"{row.case.head}, {row.case.way}, {row.case.precision}"


def _reasons(rows: Iterable[tuple[str, Row]]) -> tuple[str, ...]:
    """Say why something has no figures, each reason once; that memory ran out stands in the table."""
    by_reason: dict[str, dict[str, None]] = {}
    for name, row in rows:
        if row.result.reason and not row.result.out_of_memory:
            by_reason.setdefault(row.result.reason, {})[name] = None
    return tuple(f"{'; '.join(names)}: {reason}" for reason, names in by_reason.items())

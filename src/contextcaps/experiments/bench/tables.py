"""The measurements as tables."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from contextcaps.documents import MISSING, Column, Section, Table, number, significant
from contextcaps.experiments.bench.cases import AXES, Case, Size
from contextcaps.experiments.bench.rows import Row, ratio
from contextcaps.experiments.bench.settings import MODES, Mode
from contextcaps.experiments.bench.sweeps import Sweep, exponent

__all__ = ["mebibytes", "milliseconds", "network_tables", "size_tables", "sweep_table"]


def milliseconds(seconds: float) -> str:
    """Return seconds in ms, with three significant digits.

    >>> milliseconds(0.00512), milliseconds(2.5)
    ('5.12', '2,500')
    """
    return significant(1e3 * seconds)


def mebibytes(count: float) -> str:
    """Return bytes in MiB."""
    return number(count / 2**20)


def _ratios(pair: tuple[float, float]) -> str:
    """Return the ratios of times and of memories."""
    return f"{number(pair[0], 1)}, {number(pair[1], 1)}"


def _names(*headings: str) -> tuple[Column, ...]:
    return tuple(Column(heading, align="left") for heading in headings)


def size_tables(rows: Mapping[Case, Row], sizes: Sequence[Size], modes: Sequence[Mode]) -> list[Table]:
    """Return a table of heads for each size and mode: the cost of each way, and its ratios to others'."""
    tables = []
    for size, mode in itertools.product(sizes, modes):
        found = [row for case, row in rows.items() if case.size == size and case.mode == mode and not case.backbone]
        if found:
            tables.append(_size_table(rows, found, f"{size.name}, {MODES[mode]}: {size.words()}"))
    return tables


def _size_table(rows: Mapping[Case, Row], found: Sequence[Row], title: str) -> Table:
    both = len({row.case.precision for row in found}) > 1
    columns = [
        *_names("head", "way", ""),
        Column("ms", milliseconds),
        Column("peak, MiB", mebibytes),
        Column("beyond, MiB", mebibytes),
        Column("images/s", number),
        Column("eager : this", _ratios),
        *([Column("eager fp32 : this", _ratios)] if both else []),
        Column("compiled : this", _ratios),
        Column("floor, ms", milliseconds),
        Column("share, %", lambda share: significant(100 * share)),
    ]
    cells: list[tuple[object, ...] | Section] = []
    for head, group in itertools.groupby(found, key=lambda row: row.case.model):
        cells.append(Section())
        for row in group:
            across = [ratio(rows, row, way="eager", precision="fp32")] if both else []
            ratios = (ratio(rows, row, way="eager"), *across, ratio(rows, row, way="compiled"))
            figures = (_time(row), row.peak, row.beyond, row.images_per_second, *ratios, row.floor, row.floor_share)
            cells.append((head, row.case.way, row.case.precision, *figures))
    return Table(title, tuple(columns), cells, _reasons(found))


def sweep_table(sweep: Sweep) -> Table:
    """Return a sweep's times, and the exponents with which time and memory grow."""

    def power(found: float) -> str:
        return f"{sweep.axis}^{found:.2f}" if math.isfinite(found) else MISSING

    columns = (
        *_names("head", "way", ""),
        *(Column(f"{sweep.axis} {value}", milliseconds) for value in sweep.values),
        *(Column(heading, power) for heading in ("time ~", "at the end", "memory ~", "at the end")),
    )
    cells = []
    for line in sweep.lines:
        times = [_time(line.rows[value]) if value in line.rows else None for value in sweep.values]
        costs = ([row.seconds for row in line.rows.values()], [row.peak for row in line.rows.values()])
        growth = [exponent(list(line.rows), each, last) for each in costs for last in (0, 2)]
        cells.append((line.head, line.way, line.precision, *times, *growth))
    here = f"{sweep.axis} {getattr(sweep.base, AXES[sweep.axis])}"
    base = sweep.base.words().replace(here, f"{sweep.axis} as below", 1)
    reasons = _reasons(row for line in sweep.lines for row in line.rows.values())
    note = "In ms. At the end: between the two largest sizes that ran."
    return Table(f"Growth with {sweep.axis}, {MODES[sweep.mode]}: {base}", columns, cells, (note, *reasons))


def network_tables(rows: Iterable[Row]) -> list[Table]:
    """Return a table of networks for each backbone and mode; ratios are to the first one of the same precision."""
    groups: dict[tuple[str, Mode], list[Row]] = {}
    for row in rows:
        if row.case.backbone:
            groups.setdefault((row.case.backbone, row.case.mode), []).append(row)
    tables = []
    for (backbone, mode), group in groups.items():
        case, first = group[0].case, {row.case.precision: row for row in reversed(group)}
        columns = (
            *_names("network", "precision"),
            Column("ms", milliseconds),
            Column("peak, MiB", mebibytes),
            Column("images/s", number),
            Column(f"this : {case.model}", _ratios),
        )
        cells = []
        for row in group:
            figures = (_time(row), row.peak, row.images_per_second, first[row.case.precision].compared(row))
            cells.append((row.case.model, row.case.precision, *figures))
        name, _, side = backbone.rpartition("@")
        title = f"Networks on {name} at {side} px, {MODES[mode]}: B {case.size.batch}, J {case.size.classes}"
        tables.append(Table(title, columns, cells, _reasons(group)))
    return tables


def _time(row: Row) -> float | str:
    """Return the seconds, or in a word why there are none."""
    return row.seconds if row.has_run else "out of memory" if row.out_of_memory else "none"


def _reasons(rows: Iterable[Row]) -> tuple[str, ...]:
    """Return why cases have no figures, each reason once; that memory ran out stands in the table."""
    by_reason: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.reason and not row.out_of_memory:
            name = f"{row.case.model}, {row.case.way}, {row.case.precision}"
            by_reason.setdefault(row.reason, {})[name] = None
    return tuple(f"{'; '.join(names)}: {reason}" for reason, names in by_reason.items())

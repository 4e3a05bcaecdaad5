"""The table of suspected labels, in which a person ticks those to be corrected, and what was ticked."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from contextcaps.atomic import write_atomically
from contextcaps.data.corrected_table import Correction
from contextcaps.data.problems import DataError
from contextcaps.data.sources.table_file import cell_text, read_table
from contextcaps.documents import Column, Table
from contextcaps.tagging.audit import Audit, Suspicion

__all__ = ["audit_table", "read_ticked", "write_suspicions"]

_COLUMNS = ("image", "class", "label", "probability", "suggestion", "reason", "fix")
_TICKED = ("x", "yes", "y", "1", "1.0", "true", "✓", "✔")
_NOT_TICKED = ("", "no", "n", "0", "0.0", "false")


_SHOWN = 20
"""Suspected labels that a terminal shows at most."""


def audit_table(audit: Audit) -> Table:
    """Return the most improbable labels for a terminal."""
    columns = (
        Column("right", _probability),
        Column("image", align="left", most=40),
        Column("class", align="left", most=30),
        Column("", align="left"),
    )
    rows = [
        (each.probability, each.image, each.name, "wrong?" if each.is_present else "missing?")
        for each in audit.suspicions[:_SHOWN]
    ]
    noise = audit.noise
    note = (
        f"right: how probable it is that the label is. Of {audit.judged:,} labels judged, {audit.suspected:,} have an "
        f"opposite that the model calls more probable. By the model's fit, {_share(noise.missing)} of what is there is "
        f"not labelled, and {_share(noise.wrong)} of what is not there is."
    )
    return Table(
        "The least probable labels",
        columns,
        rows,
        (note,),
        empty="The model calls no opposite of a label more probable.",
    )


def _probability(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _share(value: float) -> str:
    return f"{100 * value:.2g} %"


def write_suspicions(suspicions: Sequence[Suspicion], path: Path | str) -> None:
    """Write suspected labels as CSV with an empty column `fix`; a crash leaves the old file or none."""
    content = io.StringIO(newline="")
    table = csv.writer(content, lineterminator="\n")
    table.writerow(_COLUMNS)
    for each in suspicions:
        says = "present" if each.is_present else "absent"
        row = (each.image, each.name, says, f"{each.probability:.6f}", each.suggestion, each.reason, "")
        table.writerow(row)
    # Names of files may be no UTF-8; their bytes are kept.
    write_atomically(Path(path), content.getvalue().encode("utf-8", "surrogateescape"))


def read_ticked(path: Path | str) -> list[Correction]:
    """Read the corrections that somebody ticked in the column `fix`, with x, yes or 1.

    Raises:
        DataError: the file is no such table, or a cell says neither yes nor no.
    """
    path = Path(path)
    table = read_table(path, header=True)
    missing = [name for name in ("image", "class", "suggestion", "fix") if name not in table.columns]
    if missing:
        raise DataError(
            f"{path}: no column {', '.join(missing)}; expected a table that contextcaps audit --out has written"
        )
    for number, what in table.problems:
        raise DataError(f"{path}, row {number}: {what}")
    image, name, suggestion, fix = (table.columns.index(each) for each in ("image", "class", "suggestion", "fix"))
    found: dict[tuple[str, str], Correction] = {}
    for number, cells in table.rows:
        where, tick = f"{path}, row {number}", cell_text(cells[fix]).lower()
        if tick in _NOT_TICKED:
            continue
        if tick not in _TICKED:
            raise DataError(f"{where}: fix: expected x for a label to be corrected, or nothing, got {cells[fix]!r}")
        what = cell_text(cells[suggestion]).lower()
        if what not in ("add", "remove"):
            raise DataError(f"{where}: suggestion: expected add or remove, got {cells[suggestion]!r}")
        key = (str(cells[image]), str(cells[name]))
        if key in found:
            raise DataError(f"{where}: {key[1]!r} of {key[0]!r} is there twice; tick one of the rows")
        found[key] = Correction(*key, what == "add", where)
    return list(found.values())

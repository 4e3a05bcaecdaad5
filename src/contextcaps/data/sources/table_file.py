"""Read the rows of a table file, as spreadsheets, pandas and R write it: CSV in its many forms, or Parquet."""

import codecs
import csv
import dataclasses
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from contextcaps.data.image_finder import is_image_name
from contextcaps.data.problems import DataError
from contextcaps.plain_files import NotPlain, bounded_lines, require_plain

__all__ = ["TableRows", "cell_text", "read_table"]

_DELIMITERS = (",", ";", "\t", "|")
"""What may stand between columns, the most usual first."""
_SAMPLE = 1 << 16
"""Characters from which the delimiter is found."""
_MOST_ROWS, _MOST_CELLS = 10_000_000, 100_000_000  # some gigabytes of text
_MOST_BYTES = 2**30  # of a Parquet table's cells
_OTHER_FILES = (
    (b"PK\x03\x04", "an Excel workbook or another zip file; save the sheet as CSV UTF-8"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook; save the sheet as CSV UTF-8"),
    (b"\x1f\x8b", "compressed; decompress it first with gunzip"),
    (b"ARROW1", "an Arrow or Feather file; save it as Parquet"),
    (b"\xff\xd8\xff", "an image, not a table of images"),
    (b"\x89PNG", "an image, not a table of images"),
    (b"{", "JSON, not a table"),
    (b"[", "JSON, not a table"),
)
_NO_NAME = re.compile(r"(Unnamed: \d+(_level_\d+)?|__index_level_\d+__)?")
"""Matches names that pandas gives to columns without one."""


@dataclasses.dataclass
class TableRows:
    """Holds a table's columns and rows."""

    columns: list[str]
    """Names, without white space around them; empty where there is none."""
    rows: list[tuple[int, Sequence[Any]]]
    """Number of each row (as a spreadsheet counts lines) and its cells, as many as there are columns."""
    has_names: bool = True
    """Whether the file has the names of the columns; they are "column 1" and so on otherwise."""
    problems: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    """Number of each row that was left out, and why."""
    assumptions: list[str] = dataclasses.field(default_factory=list)


def read_table(path: Path, header: bool | None) -> TableRows:
    """Read a table without the rows and nameless columns that hold nothing, and without a row index.

    Args:
        path: the file; its contents say whether it is Parquet.
        header: whether the first row of a CSV file has the names of the columns; None: unless it names an image.

    Raises:
        DataError: the file is no table, or is damaged.
    """
    try:
        require_plain(path)  # to open a pipe would wait for whoever writes into it
        with path.open("rb") as file:
            start = file.read(4096)
    except NotPlain as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if start.startswith(b"PAR1") or path.suffix.lower() in (".parquet", ".pq"):
        table = _read_parquet(path)
    else:
        for magic, what in _OTHER_FILES:
            if start.startswith(magic) and not (magic == b"[" and path.suffix.lower() == ".csv"):
                raise DataError(f"{path}: expected a CSV or Parquet table, this is {what}")
        try:
            table = _read_csv(path, _encoding(start), header)
        except NotPlain as error:
            raise DataError(f"{error}; expected a CSV or Parquet table") from None
    twice = [name for name, times in Counter(table.columns).items() if name and times > 1]
    if twice:
        raise DataError(f"{path}: the column {twice[0]!r} is there twice")
    return _without_index(table)


def _require_bounded(path: Path, rows: int, columns: int) -> None:
    """Refuse a table that would not fit into memory."""
    if rows > _MOST_ROWS or rows * columns > _MOST_CELLS:
        _refuse(path, f"{rows:,} rows of {columns:,} columns or more")


def _refuse(path: Path, what: str) -> NoReturn:
    raise DataError(
        f"{path}: {what}; a table of at most {_MOST_ROWS:,} rows and {_MOST_CELLS:,} cells is read, of Parquet "
        f"{_MOST_BYTES:,} bytes: divide it, or keep the columns of files and labels alone"
    )


def cell_text(cell: object) -> str:
    """Return a cell as text without white space around it; empty for None and for a missing number."""
    return "" if cell is None or cell != cell else str(cell).strip()  # only nan differs from itself


def _encoding(start: bytes) -> str:
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if len(start) >= 4 and not any(start[1:64:2]) and all(start[0:64:2]):
        return "utf-16-le"
    return "utf-8-sig"


def _read_csv(path: Path, encoding: str, header: bool | None) -> TableRows:
    try:
        with path.open(encoding=encoding, newline="") as file:
            sample = file.read(_SAMPLE)
            delimiter, skipped = _delimiter(sample)
            file.seek(0)
            lines = bounded_lines(path, file)
            for _ in range(skipped):
                next(lines)
            records = []
            for record in _records(path, lines, delimiter, skipped):
                records.append(record)
                if len(records) % 65_536 == 0:
                    _require_bounded(path, len(records), len(records[0][1]))
    except UnicodeError:
        raise DataError(_wrong_encoding(path, encoding)) from None
    if not records:
        raise DataError(f"{path}: empty; expected a first row with the names of the columns")
    first = records[0][1]
    has_names = header if header is not None else not any(is_image_name(cell) for cell in first)
    columns = [cell.strip() for cell in first] if has_names else [f"column {n}" for n in range(1, len(first) + 1)]
    table = TableRows(columns, [], has_names)
    if not has_names and header is None:
        table.assumptions.append("the first row names an image, so there is no row with the names of the columns")
    width = len(columns)
    for number, cells in records[has_names:]:
        while len(cells) > width and not cells[-1].strip():
            cells = cells[:-1]
        if len(cells) != width:
            more = f"; put a cell that contains {delimiter!r} in quotes" if len(cells) > width else ""
            table.problems.append((number, f"expected {width} cells, got {len(cells)}{more}"))
        else:
            table.rows.append((number, cells))
    return table


def _records(path: Path, lines: Iterator[str], delimiter: str, skipped: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and cells of each row in which something is written."""
    number = skipped
    try:
        for number, cells in enumerate(csv.reader(lines, delimiter=delimiter, strict=True), start=1 + skipped):
            if any(cell.strip() for cell in cells):
                yield number, cells
    except csv.Error as error:
        raise DataError(f"{path}: row {number + 1}: {error}; expected CSV with every quote closed") from None


def _delimiter(sample: str) -> tuple[str, int]:
    """Return what stands between columns, and how many lines before the table say so ("sep=;", for Excel)."""
    said = re.match(r'"?sep=(.)"?\r?\n', sample)
    if said:
        return said[1], 1

    def fit(delimiter: str) -> tuple[int, int]:
        """Return how many of the first rows have the same number of cells, and how many of them name an image."""
        with_image, widths = 0, Counter[int]()
        try:
            for _, cells in zip(range(50), csv.reader(io.StringIO(sample), delimiter=delimiter), strict=False):
                widths[len(cells)] += len(cells) > 1
                with_image += len(cells) > 1 and any(is_image_name(cell) for cell in cells)
        except csv.Error:
            pass
        return max(widths.values(), default=0), with_image

    return max(_DELIMITERS, key=fit), 0  # the first of equals


def _wrong_encoding(path: Path, encoding: str) -> str:
    """Return a message that names the first line that is not in the file's probable encoding."""
    with path.open("rb") as file:
        lines = bounded_lines(path, file) if encoding == "utf-8-sig" else iter(())
        for number, line in enumerate(lines, start=1):
            wrong = _first_wrong_byte(line)
            if wrong is not None:
                return (
                    f"{path}: line {number}: expected UTF-8 text, got the byte {wrong:#x} ({chr(wrong)!r} in Latin-1); "
                    f"save it as CSV UTF-8, or convert it: iconv -f WINDOWS-1252 -t UTF-8 {path.name} > utf8.csv"
                )
    return f"{path}: expected UTF-16 text, as its first bytes say; it is cut off or damaged: save it as CSV UTF-8"


def _first_wrong_byte(line: bytes) -> int | None:
    """Return the first byte of a line that is not UTF-8; None if all are."""
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return line[error.start]
    return None


def _read_parquet(path: Path) -> TableRows:
    try:
        import pyarrow

        from contextcaps.data.parquet_files import as_list, batches, bytes_in_rows, open_parquet
    except ImportError:
        raise DataError(f"{path}: Parquet needs pyarrow: pip install 'contextcaps[parquet]'") from None
    try:
        with open_parquet(path) as file:
            _require_bounded_parquet(path, file.metadata)
            names = [name.strip() for name in file.schema_arrow.names]
            columns: list[list[Any]] = [[] for _ in names]
            held = 0
            for batch in batches(file):
                held += sum(map(bytes_in_rows, batch.columns))
                if held > _MOST_BYTES:
                    _refuse(path, f"more than {_MOST_BYTES:,} bytes in its cells")
                for cells, column in zip(columns, batch.columns, strict=True):
                    cells += as_list(column)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: expected a Parquet file, it is cut off or none: {reason}") from None
    return TableRows(names, list(enumerate(zip(*columns, strict=True), start=1)))


def _require_bounded_parquet(path: Path, metadata: Any) -> None:
    """Refuse a Parquet table by its own account of what it holds; lists of one cell have many values."""
    _require_bounded(path, metadata.num_rows, metadata.num_columns)
    values, size = 0, 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        values += sum(group.column(index).num_values for index in range(group.num_columns))
        size += group.total_byte_size
    if values > _MOST_CELLS:
        _refuse(path, f"{values:,} values in its cells")
    if size > _MOST_BYTES:
        _refuse(path, f"{size:,} bytes in its cells")


def _without_index(table: TableRows) -> TableRows:
    """Leave out the columns without a name that hold nothing, or a number of each row, as pandas and R write it."""
    left_out = []
    for position, name in enumerate(table.columns):
        if not _NO_NAME.fullmatch(name):
            continue
        texts = [cell_text(cells[position]) for _, cells in table.rows]
        if not any(texts):
            left_out.append(position)
        elif all(text.isdecimal() for text in texts) and len(set(texts)) == len(texts):
            left_out.append(position)
            table.assumptions.append(f"column {position + 1} ({name!r}) is a row index ({texts[0]}, …), and left out")
        else:
            table.columns[position] = ""
    if left_out:
        kept = sorted({*range(len(table.columns))}.difference(left_out))
        table.columns = [table.columns[position] for position in kept]
        table.rows = [(number, [cells[position] for position in kept]) for number, cells in table.rows]
    return table

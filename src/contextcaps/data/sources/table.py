"""Read a table of images, CSV or Parquet: `table:FILE`.

Either one column holds each image's labels, as text with a separator or (in Parquet) as a list, or there is one column
per class with 0 or 1. Paths are relative to the table's folder and never lead out of it.
"""

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from contextcaps.data.file_source import BadSample, FileSource, Folder, Record, check_access
from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.source import Unlabelled
from contextcaps.data.vocabulary import Vocabulary, read_classes

__all__ = ["TableSource"]

_IMAGE_NAMES = ("path", "image", "file", "filename", "file_name", "image_path", "filepath", "img")
_LABEL_NAMES = ("labels", "label", "tags", "classes")
_SPLIT_NAMES = ("split", "set", "subset")
_TRUTH = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
_OTHER_SEPARATORS = (";", ",", "|", " ")


class TableSource(FileSource):
    """Gives the images of a table, in the order of its rows; an image's id is its path as the table has it.

    Args:
        location: a .csv file (UTF-8, first row column names, separated by commas, semicolons or tabs), or .parquet.
        split: a value of the split column, if there is one; None opens all rows.
        image_column: name of the column with the paths; None looks for a usual one, such as "path" or "image".
        label_column: name of the column with the labels; None looks for a usual one, such as "labels" or "tags", and
            if there is none, every other column is a class.
        split_column: name of the column with the splits; None looks for "split", "set" or "subset".
        separator: what stands between labels in a cell; " " is any white space.
        root: folder that the paths are relative to; None is the table's own folder.
        classes: file with the class names (.json list, or one per line). None: the columns in their order, or the names
            found in the whole table, sorted.
        unlabelled: an image without a label is a problem ("refuse"), left out ("drop") or kept ("keep").
    """

    kind = "table"

    def __init__(
        self,
        location: str,
        *,
        on_bad: OnBad = "stop",
        split: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        split_column: str | None = None,
        separator: str = ";",
        root: str | None = None,
        classes: str | None = None,
        unlabelled: Unlabelled = "refuse",
    ) -> None:
        settings = {"columns": (image_column, label_column, split_column), "separator": separator}
        super().__init__(f"table:{location}", on_bad, unlabelled, settings)
        if not separator:
            raise DataError(f"{self.name}: option separator: expected at least one character")
        path = Path(location)
        check_access(self.name, path, *([] if root is None else [Path(root)]))
        if not path.is_file():
            raise DataError(f"{self.name}: no such file; expected a .csv or .parquet table")
        if root is not None and not Path(root).is_dir():
            raise DataError(f"{self.name}: option root: no such folder: {root}")
        self._separator = separator
        self._folder = Folder(Path(root) if root is not None else path.parent)
        self.root = f"{os.path.realpath(path)} {os.path.realpath(self._folder.path)}"
        self._table_facts = f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}"
        rows = _parquet_rows(path) if path.suffix.lower() in (".parquet", ".pq") else self._csv_rows(path)
        _, self._columns = next(rows)
        image = self._find_column("image_column", image_column, _IMAGE_NAMES)
        if image is None:
            raise DataError(
                f"{self.name}: no column named {', '.join(_IMAGE_NAMES)}; the columns are {', '.join(self._columns)}; "
                "name one with image_column=NAME"
            )
        self._image = image
        self._label = self._find_column("label_column", label_column, _LABEL_NAMES)
        split_at = self._find_column("split_column", split_column, _SPLIT_NAMES)
        given = read_classes(Path(classes)) if classes is not None else None
        self._class_columns: list[tuple[int, str]] = []
        if self._label is None:
            self._class_columns = self._find_class_columns(given, (self._image, split_at))
            given = given or tuple(name for _, name in self._class_columns)
        self._vocabulary = Vocabulary(given, classes or "the table's columns")
        self._read(list(rows), split_at, split)
        self._finish()

    def _read(self, rows: list[tuple[int, Sequence[Any]]], split_at: int | None, split: str | None) -> None:
        """Check every row, and keep the samples of the split that was asked for."""
        split_of = {} if split_at is None else {row: _text(cells[split_at]) for row, cells in rows}
        self.splits = tuple(dict.fromkeys(word for word in split_of.values() if word))
        self._choose_split(split)
        first_row: dict[str, int] = {}
        records: list[Record] = []
        for row, cells in rows:
            wanted = self.split is None or split_of[row] == self.split
            try:
                labels = self._labels(cells)  # of every row, so that each split has the same classes
                if not wanted:
                    continue
                if split_of and not split_of[row]:
                    raise BadSample("the split is missing")
                if not isinstance(cells[self._image], str):
                    kind = type(cells[self._image]).__name__
                    raise BadSample(f"column {self._columns[self._image]!r}: expected a path, got {kind}")
                name = _text(cells[self._image])
                image = self._folder.member(name)
                if name in first_row:
                    raise BadSample(f"{name} is there before, in row {first_row[name]}")
                first_row[name] = row
                record = Record(name, image, tuple(labels), (self._folder.facts(image),))
                if self._keeps(labels, name):
                    records.append(record)
            except (BadSample, DataError) as error:
                if wanted:
                    self.problems.add(f"row {row}", str(error))
        self.classes, final = self._vocabulary.final()
        for record in records:
            labels = sorted({int(final[label]) for label in record.labels})
            self._keep(Record(record.id, record.image, tuple(labels), record.facts))
        if self._label is not None:
            self._note_separator([cells[self._label] for _, cells in rows])

    def _labels(self, cells: Sequence[Any]) -> list[int]:
        """Return the indices of a row's labels in the vocabulary."""
        if self._label is not None:
            cell = cells[self._label]
            if isinstance(cell, list):
                return self._vocabulary.add(cell)
            parts = _text(cell).split(None if self._separator.isspace() else self._separator)
            return self._vocabulary.add(part.strip() for part in parts if part.strip())
        present = []
        for position, name in self._class_columns:
            truth = _TRUTH.get(_text(cells[position]).lower())
            if truth is None:
                raise BadSample(
                    f"column {name!r}: expected 0 or 1, got {_text(cells[position])!r}; if the column is no class, "
                    "name the label column (label_column=NAME) or list the classes (classes=FILE)"
                )
            if truth:
                present.append(name)
        return self._vocabulary.add(present)

    def _note_separator(self, cells: Sequence[Any]) -> None:
        """Note a separator that is probably wrong, since it would make one class of several labels."""
        texts = [cell for cell in cells if isinstance(cell, str)]
        if any(self._separator in text for text in texts):
            return
        for other in _OTHER_SEPARATORS:
            count = sum(other in text.strip() for text in texts)
            if 2 * count > len(texts):
                self.notes.append(
                    f"no cell of {self._columns[self._label or 0]!r} contains the separator {self._separator!r}, "
                    f"but {count} contain {other!r}: perhaps separator={other!r} is meant"
                )
                return

    def _find_column(self, option: str, name: str | None, usual: tuple[str, ...]) -> int | None:
        """Return the position of a column by its name, or by the first usual name that is there, whatever its case."""
        if name is not None:
            if name not in self._columns:
                raise DataError(f"{self.name}: {option}: no column {name!r}; it has {', '.join(self._columns)}")
            return self._columns.index(name)
        lowered = [column.strip().lower() for column in self._columns]
        return next((lowered.index(word) for word in usual if word in lowered), None)

    def _find_class_columns(
        self, given: tuple[str, ...] | None, others: tuple[int | None, ...]
    ) -> list[tuple[int, str]]:
        if given is not None:
            missing = [name for name in given if name not in self._columns]
            if missing:
                raise DataError(
                    f"{self.name}: no column for {len(missing)} of {len(given)} classes: {', '.join(missing[:10])}; "
                    f"and no column named {', '.join(_LABEL_NAMES)}"
                )
            return [(self._columns.index(name), name) for name in given]
        found = [(position, name) for position, name in enumerate(self._columns) if position not in others]
        if not found:
            raise DataError(
                f"{self.name}: no labels: expected a column named {', '.join(_LABEL_NAMES)}, or one column per class "
                f"with 0 or 1; the columns are {', '.join(self._columns)}; name one with label_column=NAME"
            )
        return found

    def _csv_rows(self, path: Path) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield row numbers (the row of names is 1, as in a spreadsheet) and cells; first the row of names."""
        number = 0
        width = None
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                head = file.readline()
                file.seek(0)
                delimiter = max(",;\t", key=head.count)  # the first of equals
                for number, cells in enumerate(csv.reader(file, delimiter=delimiter, strict=True), start=1):
                    if width is None:
                        _check_columns(path, cells)
                        width = len(cells)
                    elif cells and len(cells) != width:
                        self.problems.add(f"row {number}", f"expected {width} cells, got {len(cells)}")
                        continue
                    if cells:
                        yield number, cells
        except csv.Error as error:
            raise DataError(f"{path}: row {number + 1}: {error}; expected CSV with every quote closed") from None
        except UnicodeDecodeError:
            raise DataError(f"{path}: after row {number}: expected UTF-8 text; save it as CSV in UTF-8") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        if width is None:
            raise DataError(f"{path}: empty; expected a first row with the names of the columns")

    def _identity(self) -> Iterator[str]:
        yield self._table_facts
        yield from super()._identity()


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    if not columns:
        raise DataError(f"{path}: expected the names of the columns in the first row, it is empty")
    twice = [name for position, name in enumerate(columns) if name in columns[:position]]
    if twice:
        raise DataError(f"{path}: the column {twice[0]!r} is there twice")


def _parquet_rows(path: Path) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yield row numbers from 1 and cells; first the names of the columns, as row 0."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{path}: Parquet needs pyarrow: pip install 'contextcaps[parquet]'") from None
    try:
        table = pyarrow.parquet.ParquetFile(path).read()
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: expected a Parquet file, it is cut off or none: {reason}") from None
    _check_columns(path, table.column_names)
    yield 0, table.column_names
    yield from enumerate(zip(*(column.to_pylist() for column in table.columns), strict=True), start=1)


def _text(cell: object) -> str:
    """Return a cell as text without white space around it; empty for None."""
    return "" if cell is None else str(cell).strip()

"""Read a table of images, CSV or Parquet: `table:FILE`.

Either one column holds each image's labels, as text with a separator or as a list, or one label in each of several rows
of an image, or there is one column per class with 0 or 1, or ? where nobody knows. Paths are relative to the table's
folder, or to the one that is named as `root`, and never lead out of it.
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from contextcaps.data.file_source import BadSample, FileSource, Folder, Record, check_access
from contextcaps.data.image_finder import ImageFinder
from contextcaps.data.label_cells import LabelCells
from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.source import Unlabelled
from contextcaps.data.sources.table_columns import TRUTH, UNKNOWN_WORDS, TableColumns
from contextcaps.data.sources.table_file import cell_text, read_table
from contextcaps.data.vocabulary import Vocabulary, canonical_split, folded, read_classes
from contextcaps.documents import counted
from contextcaps.suggestions import did_you_mean

__all__ = ["TableSource"]


class TableSource(FileSource):
    """Gives the images of a table, in the order of their first rows; an image's id is its path as the table has it.

    Args:
        location: a .csv file (UTF-8 or UTF-16, columns separated by commas, semicolons, tabs or |), or .parquet.
        split: a value of the split column, if there is one; None opens all rows.
        image_column: name of the column with the paths; None looks for a usual one, such as "path" or "image", or for
            the one that holds names of image files.
        label_column: name of the column with the labels; None looks for a usual one, such as "labels" or "tags", and
            if there is none, every other column of 0 and 1 is a class.
        ignore_column: beside a column of labels, name of the column with the classes of which it is not known whether
            the image shows them; None looks for "ignore", "ignored" or "unknown".
        split_column: name of the column with the splits; None looks for "split", "set", "subset" or "is_valid".
        separator: what stands between labels in a cell; " " is any white space; None finds it in the data.
        header: whether the first row has the names of the columns; None: unless it names an image.
        root: folder of the images, that the paths are relative to: the files may lie anywhere below it, and absolute
            paths into it are allowed; None is the table's own folder.
        classes: file with the class names (.json list, or one per line). None: the columns in their order, or the names
            found in the whole table, sorted.
        unify: names of classes that differ only in case or white space are one class.
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
        ignore_column: str | None = None,
        split_column: str | None = None,
        separator: str | None = None,
        header: bool | None = None,
        root: str | None = None,
        classes: str | None = None,
        unify: bool = True,
        unlabelled: Unlabelled = "refuse",
    ) -> None:
        settings = {"columns": (image_column, label_column, ignore_column, split_column), "separator": separator}
        super().__init__(f"table:{location}", on_bad, unlabelled, settings)
        if separator == "":
            raise DataError(f"{self.name}: option separator: expected at least one character")
        path = Path(location)
        check_access(self.name, path, *([] if root is None else [Path(root)]))
        if not path.is_file():
            found = "this is a folder" if path.is_dir() else "no such file"
            hint = _did_you_mean_table(path)
            raise DataError(f"{self.name}: {found}; expected a .csv or .parquet table{hint and f'; {hint}'}")
        if root is not None and not Path(root).is_dir():
            raise DataError(f"{self.name}: option root: no such folder: {root}")
        self._folder = Folder(Path(root) if root is not None else path.parent)
        self._finder = ImageFinder(self._folder, named=root is not None)
        self.root = f"{os.path.realpath(path)} {os.path.realpath(self._folder.path)}"
        self._table_facts = f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}"
        given = read_classes(Path(classes)) if classes is not None else None
        table = read_table(path, header)
        self.assumptions += table.assumptions
        for row, what in table.problems:
            self.problems.add(f"row {row}", what)
        self._columns = columns = TableColumns(self.name, table, self.assumptions)
        self._image = columns.find_image(image_column)
        self._label = columns.find_label(label_column, self._image, given)
        self._ignore = columns.find_ignored(ignore_column, self._label)
        split_at = columns.find_split(split_column)
        self._class_columns: list[tuple[int, str]] = []
        if self._label is None:
            self._class_columns = columns.find_classes(given, (self._image, self._ignore, split_at), unify)
            given = given or tuple(dict.fromkeys(name for _, name in self._class_columns))
        else:
            columns.refuse_absent_labels()
            texts = [cell_text(cells[self._label]) for _, cells in table.rows if isinstance(cells[self._label], str)]
            self._cells = LabelCells(texts, separator, given)
            self.assumptions += self._cells.assumptions
        self._vocabulary = Vocabulary(given, classes or "the table's columns", unify)
        self._read(table.rows, self._splits(table.rows, split_at), split)
        self._finish()

    def _read(self, rows: list[tuple[int, Sequence[Any]]], split_of: dict[int, str], split: str | None) -> None:
        """Check every row, and keep the samples of the split that was asked for."""
        self.splits = tuple(dict.fromkeys(word for word in split_of.values() if word))
        self._choose_split(split)
        first_row: dict[Path, int] = {}
        records: dict[Path, Record] = {}
        repeated = 0
        for row, cells in rows:
            wanted = self.split is None or split_of[row] == self.split
            try:
                labels, unknown = self._labels(cells)  # of every row, so that each split has the same classes
                if split_of and not split_of[row]:
                    raise BadSample("the split is missing")
                name = self._name(cells[self._image])
                image = self._finder.find(name)
                before = first_row.setdefault(image, row)
                if split_of and split_of[before] != split_of[row]:
                    raise BadSample(f"{name} is in {split_of[row]} here, and in {split_of[before]} in row {before}")
                if not wanted:
                    continue
                if image not in records:
                    facts = (self._folder.facts(image),)
                    records[image] = Record(name, image, tuple(labels), facts, unknown=tuple(unknown))
                elif self._label is None:
                    raise BadSample(f"{name} is there before, in row {before}")
                else:
                    repeated += 1
                    first = records[image]
                    records[image] = dataclasses.replace(
                        first, labels=(*first.labels, *labels), unknown=(*first.unknown, *unknown)
                    )
            except (BadSample, DataError) as error:
                if wanted:
                    self.problems.add(f"row {row}", str(error))
        self._check_found(len(records))
        if repeated:
            rows_of = counted(repeated, "row")
            self.assumptions.append(f"{rows_of} of images that were there before: labels of an image's rows are joined")
        self.classes, final = self._vocabulary.final()
        self.assumptions += self._vocabulary.assumptions()
        for record in records.values():
            present = {int(final[label]) for label in record.labels}
            missing = {int(final[label]) for label in record.unknown}
            try:
                if self._label is not None and present & missing:  # once rows are joined and spellings are one
                    raise DataError(self._in_both(present & missing))
                missing -= present  # of two columns for one class, the one that knows it
                # A row of which nothing is known is an image without a label.
                if not self._keeps(present or (missing if len(missing) < len(self.classes) else ()), record.id):
                    continue
            except DataError as error:
                self.problems.add(f"row {first_row[record.image]}", str(error))
                continue
            self._keep(dataclasses.replace(record, labels=tuple(sorted(present)), unknown=tuple(sorted(missing))))

    def _labels(self, cells: Sequence[Any]) -> tuple[list[int], list[int]]:
        """Return the indices in the vocabulary of a row's labels, and of the classes that are unknown there."""
        if self._label is not None:
            unknown = [] if self._ignore is None else self._listed(cells[self._ignore])
            return self._listed(cells[self._label]), unknown
        present, missing = [], []
        known = self._columns.truth
        for position, name in self._class_columns:
            cell = cells[position]
            truth = known.get(cell) if isinstance(cell, str) else None  # as it is, in most of millions of cells
            if truth is None:
                text = cell_text(cell).lower()
                truth = known.get(text)
                if truth is None and text in UNKNOWN_WORDS:
                    missing.append(name)
                    continue
            if truth is None:
                raise BadSample(
                    f"column {name!r}: expected 0, 1 or ?, got {cell_text(cells[position])!r}; if the column is no "
                    "class, name the label column (label_column=NAME) or list the classes (classes=FILE)"
                )
            if truth:
                present.append(name)
        return self._vocabulary.add(present), self._vocabulary.add(missing)

    def _in_both(self, classes: set[int]) -> str:
        """Say that classes are present and unknown in one image."""
        names = ", ".join(repr(self.classes[each]) for each in sorted(classes))
        columns = " and in ".join(repr(self._columns.names[each or 0]) for each in (self._label, self._ignore))
        return f"{names} both in {columns}; expected each class in one of them"

    def _listed(self, cell: Any) -> list[int]:
        """Return the indices in the vocabulary of the classes that a cell names."""
        if isinstance(cell, list):
            return self._vocabulary.add(name for name in cell if name is not None and name != "")
        return self._vocabulary.add(self._cells.split(cell_text(cell)))

    def _name(self, cell: Any) -> str:
        """Return the path in a cell."""
        if isinstance(cell, bytes | dict):
            column, found = self._columns.names[self._image], type(cell).__name__
            raise BadSample(
                f"column {column!r}: expected a path, got {found}; Parquet files that hold images are opened by their "
                "folder: hf:FOLDER"
            )
        name = cell_text(cell)
        if not name:
            raise BadSample(f"expected a file name, got {name!r}")
        return name

    def _check_found(self, found: int) -> None:
        """Raise one line, instead of one for each row, if there is no image at all where they are looked for."""
        missing = self._finder.missing
        if missing and not found and len(missing) == len(self.problems.found):
            folder = os.path.abspath(self._folder.path)
            raise DataError(
                f"{self.name}: none of {len(missing):,} images is in {folder}, such as {missing[0]}; name the folder "
                "that the paths are relative to: root=FOLDER"
            )

    def _splits(self, rows: list[tuple[int, Sequence[Any]]], position: int | None) -> dict[int, str]:
        """Return the split of each row; empty without a column of splits."""
        if position is None:
            return {}
        words = {row: cell_text(cells[position]) for row, cells in rows}
        if self._columns.names[position].lower() == "is_valid":  # as fastai has it
            parts = {False: "train", True: "val"}
            return {row: parts[TRUTH[word.lower()]] if word.lower() in TRUTH else "" for row, word in words.items()}
        usual: dict[str, str] = {}
        for word in words.values():  # Train and training are one split; train2014 and train2017 are two
            usual.setdefault(_split_key(word), word)
        unusual = [word for word in usual.values() if word and canonical_split(word) is None]
        if 0 < len(unusual) < len(usual):
            self.assumptions.append(f"training opens no rows of the splits {', '.join(map(repr, unusual[:5]))}")
        return {row: usual[_split_key(word)] for row, word in words.items()}

    def _identity(self) -> Iterator[str]:
        yield self._table_facts
        yield from super()._identity()


def _did_you_mean_table(path: Path) -> str:
    """Return the question whether a table of a similar name beside this one was meant."""
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    return did_you_mean(str(path), [str(each) for each in beside if each.suffix.lower() in (".csv", ".parquet")])


def _split_key(word: str) -> str:
    """Return what words for the same split have in common."""
    plain = None if any(sign.isdecimal() for sign in word) else canonical_split(word)
    return plain or folded(word)

"""Read a list of labels that lies beside the images, in one folder or in one for each split: `metadata:PATH`.

train/metadata.jsonl     {"file_name": "1.jpg", "labels": ["cat"]} in each line; Hugging Face's imagefolder
train/metadata.csv       the same as a table
train/_classes.csv       a column of file names and one of 0 and 1 per class; Roboflow's multi-label export
"""

import csv
import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from contextcaps.data.file_source import BadSample, FileSource, Folder, Record, check_access
from contextcaps.data.image_files import is_clutter, walk_images
from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.source import Unlabelled
from contextcaps.data.vocabulary import Vocabulary, canonical_split, read_classes
from contextcaps.documents import counted
from contextcaps.plain_files import NotPlain, bounded_lines

__all__ = ["LIST_NAMES", "MetadataSource"]

LIST_NAMES = ("metadata.jsonl", "metadata.csv", "_classes.csv")
"""Names of the files that list labels beside images, the first that is there is read."""

_LABEL_NAMES = ("labels", "label", "tags", "classes", "categories", "category", "objects")
_OBJECT_NAMES = ("categories", "category", "labels", "label")
_SEPARATORS = (";", ",", "|")


@dataclasses.dataclass(frozen=True)
class _Row:
    """Holds what one line of a list says."""

    file: Path
    """The list."""
    line: int
    cells: dict[str, Any]


class MetadataSource(FileSource):
    """Gives the images that a list beside them names, in its order; a sample's id is its path.

    Labels are in a column labels, label, tags, classes or categories, one or a list of them; or in objects.categories,
    or in one column per class. Boxes in objects are not read, since nothing says in what unit they are.

    Args:
        location: the folder that holds the list, or the folders of the splits with one each; or one list.
        on_bad: "stop" at bad data, or "skip" it.
        split: a split's folder; None opens all.
        label_column: name of the column with the labels; None looks for a usual one.
        separator: what stands between labels in one text, where several are written so.
        classes: file with the class names (.json list, or one per line); labels may then be their indices.
        unlabelled: an image without a label is a problem ("refuse"), left out ("drop") or kept ("keep").
    """

    kind = "metadata"

    def __init__(
        self,
        location: str,
        *,
        on_bad: OnBad = "stop",
        split: str | None = None,
        label_column: str | None = None,
        separator: str | None = None,
        classes: str | None = None,
        unlabelled: Unlabelled = "drop",
    ) -> None:
        settings = {"label_column": label_column, "separator": separator}
        super().__init__(f"metadata:{location}", on_bad, unlabelled, settings)
        self._label_column, self._separator = label_column, separator
        lists = self._find_lists(location)
        self.root = os.path.realpath(self._folder.path)
        rows = {part: list(self._rows(path)) for part, path in lists.items()}
        if list(rows) == [""]:
            rows = _by_first_folder(rows[""], self._file_name)
        self._require_labels([row for each in rows.values() for row in each])
        given = None if classes is None else read_classes(Path(classes))
        columns = [_columns_of(each[0]) for each in rows.values() if each and each[0].file.name == "_classes.csv"]
        if any(each != columns[0] for each in columns):
            raise DataError(f"{self.name}: the columns of _classes.csv differ from split to split; open one at a time")
        if columns and given is None:
            given = columns[0]
        self._vocabulary = Vocabulary(given, classes or "the columns of _classes.csv")
        self.splits = tuple(part for part in rows if part)
        chosen = self._choose_split(split) or ("",)
        records: list[Record] = []
        listed: set[Path] = set()
        for part, each in rows.items():
            records += self._read(each, part in chosen, listed)
        self.classes, final = self._vocabulary.final()
        self.assumptions += self._vocabulary.assumptions()
        for record in records:
            labels = sorted({int(final[label]) for label in record.labels})
            self._keep(dataclasses.replace(record, labels=tuple(labels)))
        self._note_unlisted(lists.values(), listed)
        self._finish()

    def _find_lists(self, given: str) -> dict[str, Path]:
        """Set the folder; return the lists by split, train before val before test, or one under ""."""
        location = Path(given)
        check_access(self.name, location)
        if location.is_file():
            self._folder = Folder(location.parent)
            return {"": location}
        expected = f"expected {', '.join(LIST_NAMES[:-1])} or {LIST_NAMES[-1]}"
        if not given or not location.is_dir():
            raise DataError(f"{self.name}: {expected} in a folder, found no such folder")
        self._folder = Folder(location)
        single = _list_in(location)
        if single is not None:
            return {"": single}
        try:
            entries = [entry for entry in self._folder.entries(location) if not is_clutter(entry.name)]
            found = {entry.name: _list_in(Path(entry.path)) for entry in entries if entry.is_dir()}
            lists = {part: path for part, path in found.items() if path is not None}
            for path in lists.values():
                self._folder.facts(path)
        except BadSample as bad:
            raise DataError(f"{self.name}: {bad}") from None
        if not lists:
            raise DataError(f"{self.name}: {expected}, there or in the folder of each split; found none")
        order = {"train": 0, "val": 1, "test": 2}
        return dict(sorted(lists.items(), key=lambda each: (order.get(canonical_split(each[0]) or "", 3), each[0])))

    def _rows(self, path: Path) -> Iterator[_Row]:
        """Yield the rows of a list."""
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                if path.suffix.lower() == ".csv":
                    head = file.readline(1 << 16)
                    file.seek(0)
                    delimiter = max(",;\t", key=head.count)  # the first of equals
                    reader = csv.reader(bounded_lines(path, file), delimiter=delimiter, skipinitialspace=True)
                    columns = [each.strip() for each in next(reader, [])]
                    twice = [each for place, each in enumerate(columns) if each in columns[:place]]
                    if twice:
                        raise DataError(f"{path}: the column {twice[0]!r} is there twice")
                    for cells in reader:
                        if len(cells) == len(columns):
                            yield _Row(path, reader.line_num, dict(zip(columns, cells, strict=True)))
                        elif cells:
                            what = f"expected {len(columns)} cells, got {len(cells)}"
                            self.problems.add(f"{self._folder.relative(path)}, line {reader.line_num}", what)
                    return
                for number, line in enumerate(bounded_lines(path, file), start=1):
                    if not line.strip():
                        continue
                    try:
                        content = json.loads(line)
                    except (ValueError, RecursionError) as error:
                        raise DataError(f"{path}: line {number}: expected JSON in one line, got {error}") from None
                    if not isinstance(content, dict):
                        raise DataError(f"{path}: line {number}: expected an object with file_name, got {line[:60]!r}")
                    yield _Row(path, number, content)
        except NotPlain as error:
            raise DataError(f"{error}; expected CSV or JSON lines") from None
        except csv.Error as error:
            raise DataError(f"{path}: {error}; expected CSV with every quote closed") from None
        except UnicodeDecodeError:
            raise DataError(f"{path}: expected UTF-8 text; save it in UTF-8") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from None

    def _file_name(self, row: _Row) -> str:
        column = _file_column(row.cells)
        if column is None:
            raise DataError(f"{row.file}: expected a column file_name, got {', '.join(row.cells)}")
        name = row.cells[column]
        return name.strip().replace("\\", "/") if isinstance(name, str) else ""

    def _read(self, rows: list[_Row], wanted: bool, listed: set[Path]) -> list[Record]:
        """Check the rows of a split, so that every split has the same classes; return its samples if it is wanted."""
        records = []
        for row in rows:
            where = f"{self._folder.relative(row.file)}, line {row.line}"
            name = self._file_name(row)
            try:
                labels = self._vocabulary.add(self._labels(row))
                image = self._folder.member(name, row.file.parent)
                if image in listed:
                    raise BadSample(f"{name} is there before; expected one line for each image")
                listed.add(image)
                if wanted:
                    facts = self._folder.facts(image)
                    records.append(Record(self._folder.relative(image), image, tuple(labels), (facts,)))
            except (BadSample, DataError) as error:
                if wanted:
                    self.problems.add(where, str(error))
        return records

    def _require_labels(self, rows: list[_Row]) -> None:
        """Raise if no row has labels."""
        if not rows:
            raise DataError(f"{self.name}: expected a line for each image, found none")
        if all(self._find_column(row) is None and row.file.name != "_classes.csv" for row in rows):
            looked = self._label_column or ", ".join(_LABEL_NAMES)
            found = ", ".join(rows[0].cells)
            raise DataError(f"{rows[0].file}: no column {looked}; it has {found}; name one with label_column=NAME")

    def _find_column(self, row: _Row) -> str | None:
        """Return the column with the labels: the one asked for, or one of a usual name."""
        if self._label_column is not None:
            return self._label_column if self._label_column in row.cells else None
        lowered = {name.strip().lower(): name for name in row.cells}
        return next((lowered[each] for each in _LABEL_NAMES if each in lowered), None)

    def _labels(self, row: _Row) -> list[object]:
        """Return the labels of a row as they are written."""
        if row.file.name == "_classes.csv" and self._label_column is None:
            return list(_present(row))
        column = self._find_column(row)
        if column is None:
            raise BadSample("the labels are missing; expected an empty list for an image without one")
        cell = row.cells[column]
        if isinstance(cell, str) and cell.lstrip()[:1] in ("[", "{"):  # a list in a cell of CSV
            try:
                cell = json.loads(cell)
            except ValueError:
                raise BadSample(f"column {column!r}: expected a list in JSON, got {cell[:60]!r}") from None
        return list(self._flatten(cell, column))

    def _flatten(self, cell: Any, column: str) -> Iterator[object]:
        """Yield the labels in a cell: one, a list of them, or objects with their categories."""
        if isinstance(cell, list):
            for each in cell:
                yield from self._flatten(each, column)
        elif isinstance(cell, dict):
            key = next((each for each in _OBJECT_NAMES if each in cell), None)
            if key is None:
                raise BadSample(f"column {column!r}: expected objects with categories, got {', '.join(cell)}")
            yield from self._flatten(cell[key], column)
        elif isinstance(cell, str):
            if self._separator is not None:
                yield from (part.strip() for part in cell.split(self._separator) if part.strip())
            elif any(each in cell for each in _SEPARATORS):
                raise BadSample(f"label {cell[:60]!r}: one class or several? Say what is between them: separator=;")
            elif cell.strip():
                yield cell.strip()
        elif cell is not None:
            yield cell

    def _note_unlisted(self, lists: Iterable[Path], listed: set[Path]) -> None:
        """Note images beside the lists that no line names."""
        unlisted: list[str] = []
        for path in lists:
            try:
                images, _ = walk_images(self._folder, path.parent)
            except BadSample:
                continue  # what is listed there has been reported
            unlisted += [self._folder.relative(image) for image in images if image not in listed]
        if unlisted:
            self.assumptions.append(f"{counted(len(unlisted), 'image')} in no line left out, such as {unlisted[0]}")


def _list_in(folder: Path) -> Path | None:
    return next((folder / name for name in LIST_NAMES if os.path.isfile(folder / name)), None)


def _file_column(cells: dict[str, Any]) -> str | None:
    """Return the column of file names: file_name, or one that ends so; filename in Roboflow's list."""
    for fits in (("file_name", "filename").__contains__, lambda name: name.endswith("_file_name")):
        found = next((name for name in cells if fits(name.strip().lower())), None)
        if found is not None:
            return found
    return None


def _columns_of(row: _Row) -> tuple[str, ...]:
    """Return the classes that the columns of _classes.csv stand for."""
    return tuple(name for name in row.cells if name != _file_column(row.cells))


def _present(row: _Row) -> Iterator[str]:
    """Yield the classes whose column has 1."""
    for name in _columns_of(row):
        value = row.cells[name].strip()
        if value not in ("0", "1"):
            raise BadSample(f"column {name!r}: expected 0 or 1, got {value!r}")
        if value == "1":
            yield name


def _by_first_folder(rows: list[_Row], file_name: Callable[[_Row], str]) -> dict[str, list[_Row]]:
    """Divide the rows of one list by the splits that their file names begin with, if all do."""
    words = [PurePosixPath(file_name(row)).parts[:1] for row in rows]
    if not rows or not all(word and canonical_split(word[0]) for word in words):
        return {"": rows}
    parts: dict[str, list[_Row]] = {}
    for row, word in zip(rows, words, strict=True):
        parts.setdefault(word[0], []).append(row)
    return parts

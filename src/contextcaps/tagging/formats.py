"""Write taggings as rows of JSON lines, CSV or Parquet, and copy the rows of such a file."""

import abc
import contextlib
import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from contextcaps.extras import import_extra
from contextcaps.tagging.known import spell_known
from contextcaps.tagging.tags import Tag, Tagging

__all__ = ["FORMATS", "OUTPUTS", "Format", "Output", "class_columns", "row_key", "row_object"]

Format = Literal["jsonl", "csv", "csv-plain", "parquet"]
FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
"""Suffix of a file → its format."""

_COMPUTED = re.compile(r"'*[=+\-@\t\r]")
"""Beginning of a cell that a spreadsheet takes for a formula, with apostrophes that it may have before it already."""
_DIGITS = 6  # after the decimal point, in text; a float32 has no more
_PRECISION_DIGITS = 2  # fifty pairs tell no more
_ROW_GROUP = 4096  # rows of a Parquet file that are held in memory


class TakesBytes(Protocol):
    """Anything that bytes can be written to."""

    def write(self, rows: bytes, /) -> Any: ...


class Output(abc.ABC):
    """Base of the writers, one for each format.

    Args:
        file: takes the bytes: a file, or standard output.
        classes: [J], names of the model's classes.
        all_scores: write every class's score.
        given: write which labels were given to the model.
        metadata: names and values that a Parquet file keeps beside its columns; text has no place for them.
    """

    def __init__(
        self,
        file: TakesBytes,
        classes: tuple[str, ...],
        all_scores: bool,
        given: bool,
        metadata: Mapping[str, str] | None = None,
    ):
        self.file, self.classes, self.all_scores, self.given = file, classes, all_scores, given

    @abc.abstractmethod
    def write(self, tagging: Tagging) -> None:
        """Add a row."""

    @abc.abstractmethod
    def copy(self, path: Path) -> set[str]:
        """Add the rows of a file of this format, but for those with an error; return the `row_key` of their images.

        Raises:
            ValueError: the file has other columns, or is something else.
        """

    def finish(self) -> None:  # noqa: B027  # text has nothing left to write
        """Write what is still to be written."""

    def abandon(self) -> None:  # noqa: B027
        """Let go of the file, which will be removed."""


class _JsonLines(Output):
    """Writes an object a line: image, tags with name and score, error if there is one, all scores if asked for.

    A tag that was given is marked, and the row lists all given labels, those that are absent, too. A tag has its
    expected precision where the model knows it.
    """

    def write(self, tagging: Tagging) -> None:
        row = row_object(tagging, self.classes, self.all_scores)
        self.file.write(_encode(json.dumps(row, ensure_ascii=False) + "\n"))

    def copy(self, path: Path) -> set[str]:
        found = set()
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    row = json.loads(line)
                    image, failed = row["image"], "error" in row
                except (ValueError, KeyError, TypeError):
                    raise ValueError(f"{path}, line {number}: expected a row that contextcaps tag wrote") from None
                if not failed:
                    found.add(row_key(image))
                    self.file.write(line.rstrip(b"\r\n") + b"\n")
        return found


def row_object(tagging: Tagging, classes: Sequence[str], all_scores: bool = False) -> dict[str, Any]:
    """Return an image's row as JSON's types, as `_JsonLines` describes it."""
    row: dict[str, Any] = {"image": tagging.image}
    row["tags"] = [_tag_object(tag) for tag in tagging.tags]
    if tagging.given:
        row["given"] = dict(tagging.given)
    if tagging.error is not None:
        row["error"] = tagging.error
    if all_scores and tagging.scores is not None:
        scores = tagging.scores.tolist()
        row["scores"] = {name: round(score, _DIGITS) for name, score in zip(classes, scores, strict=True)}
    return row


def _tag_object(tag: Tag) -> dict[str, Any]:
    precision = {} if tag.precision is None else {"precision": round(tag.precision, _PRECISION_DIGITS)}
    return {
        "name": tag.name,
        "score": round(tag.score, _DIGITS),
        **precision,
        **({"given": True} if tag.given else {}),
    }


class _Csv(Output):
    """Writes columns image, tags and scores ("; " between them, best first), error, and each class if asked for.

    A column `given` comes after `error` where labels are given. A cell that a spreadsheet would compute has an
    apostrophe before it.
    """

    escapes = True

    def __init__(
        self,
        file: TakesBytes,
        classes: tuple[str, ...],
        all_scores: bool,
        given: bool,
        metadata: Mapping[str, str] | None = None,
    ):
        super().__init__(file, classes, all_scores, given)
        columns = ("image", "tags", "scores", "error", *(("given",) if given else ()))
        self.columns = [*columns, *(class_columns(classes, columns) if all_scores else ())]
        self._write_row(self.columns)

    def write(self, tagging: Tagging) -> None:
        tags = "; ".join(tag.name for tag in tagging.tags)
        scores = "; ".join(f"{tag.score:.{_DIGITS}f}" for tag in tagging.tags)
        row = [str(tagging.image), tags, scores, tagging.error or "", *([spell_known(tagging.given)] * self.given)]
        if self.all_scores:
            scores_of_all = [None] * len(self.classes) if tagging.scores is None else tagging.scores.tolist()
            row += ["" if score is None else f"{score:.{_DIGITS}f}" for score in scores_of_all]
        self._write_row(row)

    def copy(self, path: Path) -> set[str]:
        found = set()
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            _require_columns(path, self._read(next(rows, [])), self.columns)
            for row in rows:
                if len(row) != len(self.columns):
                    raise ValueError(
                        f"{path}, line {rows.line_num}: expected {len(self.columns)} values, got {len(row)}"
                    )
                cells = self._read(row)
                if not cells[self.columns.index("error")]:
                    found.add(cells[0])
                    self._write_row(cells)
        return found

    def _write_row(self, row: list[str]) -> None:
        line = io.StringIO()
        escaped = [f"'{cell}" if _COMPUTED.match(cell) else cell for cell in row] if self.escapes else row
        csv.writer(line, lineterminator="\r\n").writerow(escaped)  # so that a cell with either is in quotes
        self.file.write(_encode(line.getvalue().removesuffix("\r\n") + "\n"))

    def _read(self, row: list[str]) -> list[str]:
        """Return what `_write_row` was given."""
        return (
            [cell[1:] if cell[:1] == "'" and _COMPUTED.match(cell) else cell for cell in row] if self.escapes else row
        )


class _PlainCsv(_Csv):
    """Writes the same with every cell as it is, for programs that are no spreadsheets."""

    escapes = False


class _Parquet(Output):
    """Writes columns image, tags (a list of name and score), error, and a float for each class if asked for.

    A column `given` (a list of name and present) comes after `error` where labels are given.
    """

    def __init__(
        self,
        file: TakesBytes,
        classes: tuple[str, ...],
        all_scores: bool,
        given: bool,
        metadata: Mapping[str, str] | None = None,
    ):
        super().__init__(file, classes, all_scores, given)
        self.arrow = import_extra("pyarrow", "parquet", "--format parquet")
        parquet = import_extra("pyarrow.parquet", "parquet", "--format parquet")
        string, real = self.arrow.string(), self.arrow.float32()
        tag = self.arrow.struct([("name", string), ("score", real)])
        columns = {"image": string, "tags": self.arrow.list_(tag), "error": string}
        if given:
            columns["given"] = self.arrow.list_(self.arrow.struct([("name", string), ("present", self.arrow.bool_())]))
        self.class_columns = class_columns(classes, tuple(columns)) if all_scores else ()
        self.schema = self.arrow.schema([*columns.items(), *((name, real) for name in self.class_columns)], metadata)
        self.writer = parquet.ParquetWriter(file, self.schema)
        self._waiting: list[Tagging] = []

    def write(self, tagging: Tagging) -> None:
        self._waiting.append(tagging)
        if len(self._waiting) >= _ROW_GROUP:
            self._write_group()

    def copy(self, path: Path) -> set[str]:
        parquet = import_extra("pyarrow.parquet", "parquet", "--format parquet")
        found: set[str] = set()
        try:
            with parquet.ParquetFile(path) as file:
                _require_columns(path, file.schema_arrow.names, self.schema.names)
                for batch in file.iter_batches(_ROW_GROUP):
                    table = self.arrow.Table.from_batches([batch])
                    table = table.filter(table["error"].is_null()).cast(self.schema)
                    found.update(table["image"].to_pylist())
                    self.writer.write_table(table)
        except self.arrow.ArrowInvalid as error:
            raise ValueError(f"{path}: not a Parquet file that contextcaps tag wrote ({error})") from None
        return found

    def finish(self) -> None:
        if self._waiting:
            self._write_group()
        self.writer.close()

    def abandon(self) -> None:
        # While the file is open: the writer would otherwise complain on standard error when it is collected.
        with contextlib.suppress(Exception):
            self.writer.close()
        self.writer.is_open = False

    def _write_group(self) -> None:
        rows, self._waiting = self._waiting, []
        values: list[Sequence[Any]] = [
            [_encode(str(row.image)).decode() for row in rows],
            [[{"name": tag.name, "score": tag.score} for tag in row.tags] for row in rows],
            [row.error for row in rows],
        ]
        if self.given:
            values.append([[{"name": name, "present": each} for name, each in row.given.items()] for row in rows])
        if self.class_columns:
            none = [None] * len(self.class_columns)
            values += zip(*(none if row.scores is None else row.scores.tolist() for row in rows), strict=True)
        arrays = [self.arrow.array(column, field.type) for column, field in zip(values, self.schema, strict=True)]
        self.writer.write_table(self.arrow.table(arrays, schema=self.schema))


def class_columns(classes: tuple[str, ...], taken: tuple[str, ...]) -> tuple[str, ...]:
    """Name the classes' columns: as the classes, unless another column or class has that name.

    >>> class_columns(("sky", "image"), ("image", "tags"))
    ('sky', 'image (class)')
    """
    names: list[str] = []
    for name in classes:
        column = name
        while column in taken or (column != name and column in classes):
            column += " (class)"
        names.append(column)
    return tuple(names)


def row_key(image: str | int) -> str:
    """Return what tells a row's image from others, in every format: its name, with escapes where it is no UTF-8."""
    return _encode(str(image)).decode()


def _require_columns(path: Path, found: Sequence[str], expected: Sequence[str]) -> None:
    if list(found) != list(expected):
        raise ValueError(
            f"{path}: its columns are not those that this command writes ({', '.join(expected[:5])} …); ask for the "
            "same model, --scores and --known as then, or write to another --out"
        )


def _encode(text: str) -> bytes:
    """Encode text as UTF-8; a file name that is no UTF-8 gets escapes, which JSON reads back as the same name."""
    return text.encode("utf-8", "backslashreplace")


OUTPUTS: dict[Format, type[Output]] = {"jsonl": _JsonLines, "csv": _Csv, "csv-plain": _PlainCsv, "parquet": _Parquet}
"""Format → its writer."""

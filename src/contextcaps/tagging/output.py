"""Write taggings as JSON lines, CSV or Parquet, row by row to standard output or whole to a file."""

import abc
import contextlib
import csv
import io
import json
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Protocol

from contextcaps.atomic import replace_atomically
from contextcaps.extras import import_extra
from contextcaps.tagging.known import spell_known
from contextcaps.tagging.tagger import Tag, Tagging

__all__ = [
    "FORMATS",
    "Count",
    "Format",
    "Output",
    "check_output",
    "open_output",
    "row_key",
    "tagged_images",
    "write_tags",
]

Format = Literal["jsonl", "csv", "parquet"]
FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
"""Suffix of a file → its format."""

_DIGITS = 6  # after the decimal point, in text; a float32 has no more
_PRECISION_DIGITS = 2  # fifty pairs tell no more
_ROW_GROUP = 4096  # rows of a Parquet file that are held in memory


class TakesRows(Protocol):
    """Anything that rows can be written to."""

    def write(self, tagging: Tagging) -> None: ...


class Count(NamedTuple):
    """Number of images that were tagged, and of those that could not be."""

    tagged: int
    failed: int


class Output(abc.ABC):
    """Base of the writers, one for each format.

    Args:
        file: takes the bytes: a file, or `_StandardOutput`.
        classes: [J], names of the model's classes.
        all_scores: write every class's score.
        given: write which labels were given to the model.
    """

    def __init__(self, file: "IO[bytes] | _StandardOutput", classes: tuple[str, ...], all_scores: bool, given: bool):
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
        row: dict[str, Any] = {"image": tagging.image}
        row["tags"] = [_tag_object(tag) for tag in tagging.tags]
        if tagging.given:
            row["given"] = dict(tagging.given)
        if tagging.error is not None:
            row["error"] = tagging.error
        if self.all_scores and tagging.scores is not None:
            scores = tagging.scores.tolist()
            row["scores"] = {name: round(score, _DIGITS) for name, score in zip(self.classes, scores, strict=True)}
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

    A column `given` comes after `error` where labels are given.
    """

    def __init__(self, file: "IO[bytes] | _StandardOutput", classes: tuple[str, ...], all_scores: bool, given: bool):
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
            _require_columns(path, next(rows, []), self.columns)
            for row in rows:
                if len(row) != len(self.columns):
                    raise ValueError(
                        f"{path}, line {rows.line_num}: expected {len(self.columns)} values, got {len(row)}"
                    )
                if not row[self.columns.index("error")]:
                    found.add(row[0])
                    self._write_row(row)
        return found

    def _write_row(self, row: list[str]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(row)
        self.file.write(_encode(line.getvalue()))


class _Parquet(Output):
    """Writes columns image, tags (a list of name and score), error, and a float for each class if asked for.

    A column `given` (a list of name and present) comes after `error` where labels are given.
    """

    def __init__(self, file: "IO[bytes] | _StandardOutput", classes: tuple[str, ...], all_scores: bool, given: bool):
        super().__init__(file, classes, all_scores, given)
        self.arrow = import_extra("pyarrow", "parquet", "--format parquet")
        parquet = import_extra("pyarrow.parquet", "parquet", "--format parquet")
        string, real = self.arrow.string(), self.arrow.float32()
        tag = self.arrow.struct([("name", string), ("score", real)])
        columns = {"image": string, "tags": self.arrow.list_(tag), "error": string}
        if given:
            columns["given"] = self.arrow.list_(self.arrow.struct([("name", string), ("present", self.arrow.bool_())]))
        self.class_columns = class_columns(classes, tuple(columns)) if all_scores else ()
        self.schema = self.arrow.schema([*columns.items(), *((name, real) for name in self.class_columns)])
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


_OUTPUTS: dict[Format, type[Output]] = {"jsonl": _JsonLines, "csv": _Csv, "parquet": _Parquet}


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


def check_output(path: Path | None, form: Format | None) -> Format:
    """Return the format to write; raise ValueError, before the work starts, if the file or the format will not do."""
    if path is None:
        if form == "parquet":
            raise ValueError("--format parquet: needs a file to write to: --out FILE.parquet")
        return form or "jsonl"
    if not path.parent.is_dir():
        raise ValueError(f"--out {path}: its folder is not there; make {path.parent} first")
    if path.is_dir() or (path.exists() and not stat.S_ISREG(path.stat().st_mode)):
        raise ValueError(f"--out {path}: expected a file; without --out the rows go to standard output")
    if form is None and path.suffix.lower() not in FORMATS:
        raise ValueError(f"--out {path}: its suffix names no format; expected {', '.join(FORMATS)}, or add --format")
    form = form or FORMATS[path.suffix.lower()]
    if form == "parquet":
        import_extra("pyarrow", "parquet", "--format parquet")
    return form


def row_key(image: str | int) -> str:
    """Return what tells a row's image from others, in every format: its name, with escapes where it is no UTF-8."""
    return _encode(str(image)).decode()


def _require_columns(path: Path, found: Sequence[str], expected: Sequence[str]) -> None:
    if list(found) != list(expected):
        raise ValueError(
            f"{path}: its columns are not those that this command writes ({', '.join(expected[:5])} …); ask for the "
            "same model, --scores and --known as then, or write to another --out"
        )


def tagged_images(path: Path, form: Format, classes: tuple[str, ...], all_scores: bool, given: bool) -> set[str]:
    """Return the `row_key` of the images for which a file has a row without an error; none if there is no file.

    Raises:
        ValueError: the file was not written with the same settings, which are those of `open_output`.
    """
    if not path.exists():
        return set()
    with open(os.devnull, "wb") as nothing:
        output = _OUTPUTS[form](nothing, classes, all_scores, given)
        try:
            return output.copy(path)
        finally:
            output.abandon()


@contextlib.contextmanager
def open_output(
    path: Path | None, form: Format | None, classes: tuple[str, ...], all_scores: bool = False, given: bool = False
) -> Iterator[Output]:
    """Write taggings to a file, or to standard output.

    A file is written beside its place and moved there at the end: after an error it is not there, or as it was before.
    Standard output has whole rows at any time.

    Args:
        path: the file; None for standard output.
        form: "jsonl", "csv" or "parquet"; None: by the file's suffix, JSON lines on standard output.
        classes: [J], names of the model's classes.
        all_scores: write every class's score, not only those of the tags.
        given: write which labels were given to the model.
    """
    form = check_output(path, form)
    if path is None:
        sys.stdout.flush()  # what was printed before comes first
        output = _OUTPUTS[form](_StandardOutput(), classes, all_scores, given)
        yield output
        output.finish()
        return
    place = Path(os.path.realpath(path))  # for a link, the file that it leads to
    with replace_atomically(place) as temporary, temporary.open("wb") as file:
        output = _OUTPUTS[form](file, classes, all_scores, given)
        try:
            yield output
            output.finish()
        except BaseException:
            output.abandon()
            raise


def write_tags(
    taggings: Iterable[Tagging], output: TakesRows | None, tell: Callable[[int], None] = lambda count: None
) -> Count:
    """Write taggings as they come.

    Args:
        taggings: from `Tagger.tag_stream`.
        output: takes them; without one they are only counted.
        tell: called with the number of images done since its last call.
    """
    tagged = failed = 0
    for tagging in taggings:
        if output is not None:
            output.write(tagging)
        failed += tagging.error is not None
        tagged += tagging.error is None
        tell(1)
    return Count(tagged, failed)


def _encode(text: str) -> bytes:
    """Encode text as UTF-8; a file name that is no UTF-8 gets escapes, which JSON reads back as the same name."""
    return text.encode("utf-8", "backslashreplace")


class _StandardOutput:
    """Writes each row at once, and whole."""

    def write(self, rows: bytes, /) -> None:
        with _uninterrupted():
            sys.stdout.buffer.write(rows)
            sys.stdout.buffer.flush()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C until a block is done, so that no row is cut; obey a second one at once."""
    # Another thread is not interrupted; nor is a process whose parent had it ignore Ctrl-C, as shells do with `… &`.
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        yield
        return
    interrupted = False

    def note(number: int, frame: object) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt

"""Write taggings row by row to standard output, or whole to a file."""

import contextlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from contextcaps.atomic import replace_atomically, require_place
from contextcaps.extras import import_extra
from contextcaps.tagging.formats import FORMATS, OUTPUTS, Format, Output
from contextcaps.tagging.tags import Tagging

__all__ = ["Count", "TakesRows", "check_output", "open_output", "tagged_images", "write_tags"]


class TakesRows(Protocol):
    """Anything that rows can be written to."""

    def write(self, tagging: Tagging) -> None: ...


class Count(NamedTuple):
    """Number of images that were tagged, and of those that could not be."""

    tagged: int
    failed: int


def check_output(path: Path | None, form: Format | None) -> Format:
    """Return the format to write; raise ValueError, before the work starts, if the file or the format will not do."""
    if path is None:
        if form == "parquet":
            raise ValueError("--format parquet: needs a file to write to: --out FILE.parquet")
        return form or "jsonl"
    require_place(path, "--out")
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"--out {path}: expected a file; without --out the rows go to standard output")
    if form is None and path.suffix.lower() not in FORMATS:
        raise ValueError(f"--out {path}: its suffix names no format; expected {', '.join(FORMATS)}, or add --format")
    form = form or FORMATS[path.suffix.lower()]
    if form == "parquet":
        import_extra("pyarrow", "parquet", "--format parquet")
    return form


def tagged_images(path: Path, form: Format, classes: tuple[str, ...], all_scores: bool, given: bool) -> set[str]:
    """Return the `row_key` of the images for which a file has a row without an error; none if there is no file.

    Raises:
        ValueError: the file was not written with the same settings, which are those of `open_output`.
    """
    if not path.exists():
        return set()
    with open(os.devnull, "wb") as nothing:
        output = OUTPUTS[form](nothing, classes, all_scores, given)
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
        output = OUTPUTS[form](_StandardOutput(), classes, all_scores, given)
        yield output
        output.finish()
        return
    place = Path(os.path.realpath(path))  # for a link, the file that it leads to
    with replace_atomically(place) as temporary, temporary.open("wb") as file:
        output = OUTPUTS[form](file, classes, all_scores, given)
        try:
            yield output
            output.finish()
        except BaseException:
            output.abandon()
            raise


def write_tags(
    taggings: Iterable[Tagging], outputs: Sequence[TakesRows], tell: Callable[[int], None] = lambda count: None
) -> Count:
    """Write taggings as they come.

    Args:
        taggings: from `Tagger.tag_stream`.
        outputs: take them; without one they are only counted.
        tell: called with the number of images done since its last call.
    """
    tagged = failed = 0
    for tagging in taggings:
        for output in outputs:
            output.write(tagging)
        failed += tagging.error is not None
        tagged += tagging.error is None
        tell(1)
    return Count(tagged, failed)


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

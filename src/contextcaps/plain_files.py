"""Read files that may come from anybody: plain ones, inside their folder, no larger than such a file can be."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, AnyStr

__all__ = ["LARGE", "NotPlain", "bounded_lines", "parse_json", "read_bytes", "read_text", "require_plain"]

MOST_BYTES = 2**25
"""Most bytes of a file of settings, facts or class names: a million classes fit."""

LARGE = 2**31
"""Most bytes of a file that lists or describes all images of a data set."""

_LONGEST_LINE = 2**26  # of what is no text, such as a disk's holes, one line may be all
_MOST_DIGITS = 19  # of a whole number: those of 64 bits
_KERNEL = ("/proc/", "/sys/")
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotPlain(ValueError):
    """A file that is not read, such as a pipe or a link out of its folder; the message begins with its path."""


def require_plain(path: Path, folder: Path | None = None, most: int | None = None) -> int:
    """Return a file's size in bytes; refuse what is no plain file, or a link out of the folder that it came in.

    Args:
        path: of the file. Nothing is opened: to open a pipe would wait for whoever writes into it.
        folder: what links may not lead out of; None for a file that the user has named.
        most: bytes that it may have.

    Raises:
        NotPlain: it is a pipe, a device, a folder, or elsewhere.
        OSError: it is not there, or may not be looked at.
    """
    found = path.stat()
    for is_kind, kind in _KINDS:
        if is_kind(found.st_mode):
            raise NotPlain(f"{path}: {kind}; expected a plain file")
    if not found.st_size and str(path.resolve()).startswith(_KERNEL):  # to read some of them would wait for ever
        raise NotPlain(f"{path}: a file of the kernel; expected a plain file")
    if folder is not None and not path.resolve().is_relative_to(folder.resolve()):
        raise NotPlain(f"{path}: a link out of {folder}; links are followed only inside it: put the file itself there")
    if most is not None and found.st_size > most:
        raise NotPlain(f"{path}: {found.st_size:,} bytes; expected a text file of at most {most:,}")
    return found.st_size


def read_text(path: Path, folder: Path | None = None, encoding: str = "utf-8", most: int = MOST_BYTES) -> str:
    """Read a text file of at most so many bytes; arguments and errors are those of `require_plain`.

    Raises:
        NotPlain: it has more, too.
        UnicodeDecodeError: it is no text.
    """
    require_plain(path, folder, most)
    return path.read_text(encoding=encoding)


def read_bytes(path: Path) -> bytes:
    """Read a file of at most `MOST_BYTES`; errors are those of `require_plain`."""
    require_plain(path, most=MOST_BYTES)
    return path.read_bytes()


def bounded_lines(path: Path, file: IO[AnyStr]) -> Iterator[AnyStr]:
    """Yield the lines of an open file.

    Raises:
        NotPlain: one of them has no end.
    """
    while line := file.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise NotPlain(f"{path}: a line of more than {_LONGEST_LINE:,} letters")
        yield line


def parse_json(text: str | bytes) -> Any:
    """Return the value of JSON text; a whole number of more than 64 bits, or lists without end in lists, are errors.

    Raises:
        ValueError: it is no JSON, or not such.
    """
    try:
        return json.loads(text, parse_int=_whole_number)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _whole_number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits; expected one of at most {_MOST_DIGITS}")
    return int(digits)

"""Find the image files behind names on the command line: files, folders, patterns, and names from standard input.

Names are yielded one by one: no image is opened, and only one folder's names at a time are in memory.
"""

import dataclasses
import glob
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from contextcaps.data.image_files import looks_like_image

__all__ = ["NotAnImage", "count_images", "find_images"]


@dataclasses.dataclass(frozen=True)
class NotAnImage:
    """Takes the place of an image where a name leads to none, so that it is reported in its order."""

    name: str
    why: str


def find_images(names: Iterable[str | Path], listed: BinaryIO | None = None) -> Iterator[str | NotAnImage]:
    """Yield the image files that names stand for, in the order of the names.

    A name is that of a file, which is taken as it is; of a folder, whose images (by their suffix) are taken recursively
    and sorted, hidden ones and links to folders left out; or a pattern such as `photos/**/*.jpg`, whose files are taken
    sorted. `-` stands for the names on standard input, one a line, or with a NUL after each (`find -print0`).

    Args:
        names: names of files, folders and patterns, or `-`.
        listed: stream of the names for `-`; standard input by default.
    """
    for given in names:
        name = os.fspath(given)
        if name == "-":
            for line in _listed_names(sys.stdin.buffer if listed is None else listed):
                yield from _found(line)
        else:
            yield from _found(name)


def count_images(names: Iterable[str | Path]) -> int | None:
    """Count images (and names without one); return None where names come from standard input."""
    plain = [os.fspath(name) for name in names]
    return None if "-" in plain else sum(1 for _ in find_images(plain))


def _found(name: str) -> Iterator[str | NotAnImage]:
    if not name:
        yield NotAnImage(name, "an empty name")
    elif os.path.isdir(name):
        yield from _or_else(_in_folder(name), NotAnImage(name, "no images in this folder"))
    elif glob.has_magic(name) and not os.path.lexists(name):  # a file may well be called "a [1].jpg"
        try:
            matches = _matches(name)
        except RecursionError:
            yield NotAnImage(name, "folders nested too deeply for a pattern; name the folder itself")
            return
        yield from _or_else(iter(matches), NotAnImage(name, "no file has this name or matches it as a pattern"))
    else:
        yield name  # a missing file is reported when it is read


def _or_else(found: Iterator[str | NotAnImage], otherwise: NotAnImage) -> Iterator[str | NotAnImage]:
    """Yield what is found, or something else if it is nothing."""
    yield next(found, otherwise)
    yield from found


def _in_folder(folder: str) -> Iterator[str | NotAnImage]:
    """Yield a folder's images, and those of the folders in it, by name."""
    left = [(folder, True)]  # paths still to come and whether they are folders, the next one last
    while left:
        path, is_folder = left.pop()
        if not is_folder:
            yield path
            continue
        try:
            with os.scandir(path) as entries:
                found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except OSError as error:
            yield NotAnImage(path, f"the folder cannot be listed ({error.strerror})")
            continue
        left += [
            (os.path.join(path, name), inner_is_folder)
            for name, inner_is_folder in reversed(found)
            if not name.startswith(".") and (inner_is_folder or looks_like_image(name))
        ]


def _matches(pattern: str) -> list[str]:
    """Return the files that a pattern matches; only images if it matches any name, as `photos/**` does."""
    anything = os.path.basename(pattern) in ("*", "**")
    pattern = re.sub(
        r"(?<![^/])(\*\*/+)+", "**/", pattern
    )  # the same files; each `**` more would look at all folders again
    found = sorted(set(glob.iglob(pattern, recursive=True)))
    return [name for name in found if not os.path.isdir(name) and (not anything or looks_like_image(name))]


def _listed_names(stream: BinaryIO) -> Iterator[str]:
    """Yield names from a stream as they arrive; they end in NULs or new lines, whichever comes first."""
    separator, rest = b"", b""
    read = getattr(stream, "read1", stream.read)  # read1 gives what is there, and does not wait for more
    while chunk := read(1 << 16):
        rest += chunk
        if not separator:
            separator = b"\0" if b"\0" in rest else b"\n" if b"\n" in rest else b""
        if separator:
            *names, rest = rest.split(separator)
            yield from _decode_names(names, separator)
    yield from _decode_names([rest], separator)


def _decode_names(names: list[bytes], separator: bytes) -> Iterator[str]:
    """Yield names as the file system's strings, without empty ones."""
    for name in names:
        name = name if separator == b"\0" else name.removesuffix(b"\r")
        if name:
            yield os.fsdecode(name)

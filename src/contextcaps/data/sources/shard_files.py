"""Find the files of a pattern of tar shards, and the split in a file's name."""

import glob
import os
import re
from pathlib import Path

from contextcaps.data.file_source import check_access
from contextcaps.data.problems import DataError
from contextcaps.data.vocabulary import canonical_split
from contextcaps.plain_files import NotPlain, require_plain

__all__ = ["find_shards", "split_of_shard"]

_MOST_NAMES = 1_000_000  # that ranges in braces may stand for

_COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}
"""First bytes of a compressed file → the command that decompresses it."""


def find_shards(location: str) -> list[Path]:
    """Return the files of a folder or of a pattern, with ranges in braces, in order."""
    pattern = os.path.join(location, "*.tar") if location and os.path.isdir(location) else location
    paths: list[Path] = []
    for each in _expand_braces(pattern):
        try:
            found = sorted(glob.glob(each, recursive=True))
        except RecursionError:
            raise DataError(f"shards:{location}: folders nested too deeply for a pattern; name a folder") from None
        if not found:
            check_access(f"shards:{location}", _folder_of(each))
            raise DataError(
                f"shards:{location}: no file matches {each!r}; expected plain tar files such as train-*.tar"
            )
        paths += [Path(name) for name in found]
    paths = list(dict.fromkeys(paths))
    for path in paths:
        try:
            # A link that was named itself is followed wherever it leads.
            require_plain(path, None if str(path) == location else _folder_of(pattern))
            with path.open("rb") as file:
                start = file.read(6)
        except NotPlain as error:
            raise DataError(str(error)) from None
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        for magic, command in _COMPRESSED.items():
            if start.startswith(magic):
                raise DataError(
                    f"{path}: compressed; samples are read by offset, so decompress it first: {command} {path}"
                )
    return paths


def _folder_of(pattern: str) -> Path:
    """Return the folder that a pattern begins in: all before its first part with a wild card."""
    folder = Path(pattern).parent
    while glob.has_magic(str(folder)):
        folder = folder.parent
    return folder


def _expand_braces(pattern: str) -> list[str]:
    """Spell out every range: a-{08..10}.tar → a-08.tar, a-09.tar, a-10.tar."""
    match = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if match is None:
        return [pattern]
    first, last = match.groups()
    if len(last) > 9 or not int(first) <= int(last):
        raise DataError(f"shards:{pattern}: expected a rising range in braces, got {match.group()}")
    numbers = range(int(first), int(last) + 1)
    rest = _expand_braces(pattern[match.end() :])
    if len(numbers) * len(rest) > _MOST_NAMES:
        raise DataError(f"shards:{pattern}: {len(numbers) * len(rest):,} names; expected at most {_MOST_NAMES:,}")
    return [f"{pattern[: match.start()]}{number:0{len(first)}d}{tail}" for number in numbers for tail in rest]


def split_of_shard(path: Path) -> str | None:
    """Return the split in a shard's name, such as train for train-00012.tar; None if it has none."""
    word = re.sub(r"[-_.]?\d+(-of-\d+)?$", "", path.name.removesuffix(".tar"))
    return word if canonical_split(word) is not None else None

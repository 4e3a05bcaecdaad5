"""Sources whose samples are image files in a folder: finding the files without leaving it, and keeping the index."""

import contextlib
import dataclasses
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeVar

import numpy as np

from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.sample import Boxes, Sample
from contextcaps.data.source import Source
from contextcaps.data.unlabelled import Unlabelled, UnlabelledRule
from contextcaps.data.vocabulary import choose_split

__all__ = [
    "BadSample",
    "FileSource",
    "Folder",
    "Record",
    "boxes_from",
    "check_access",
    "choose",
    "fraction",
    "read_in_threads",
]

Item = TypeVar("Item")
Result = TypeVar("Result")


class BadSample(Exception):
    """What is wrong with one sample, as a phrase; becomes one of the source's problems."""


class Folder:
    """A folder that files are read from, and never out of: links that lead outside are not followed.

    Args:
        path: the folder; it may be a link itself, since it is what the user named.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._real = os.path.realpath(path)
        self._held: dict[Path, bool] = {}

    def member(self, name: object, base: Path | None = None) -> Path:
        """The path of a file that the data names, relative to `base`; a `BadSample` if it points outside."""
        if not isinstance(name, str) or not name.strip() or "\0" in name:
            raise BadSample(f"expected a file name, got {name!r}")
        if PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive or name.startswith("\\"):
            raise BadSample(f"file name {name!r} is absolute; expected one relative to the folder")
        if ".." in PurePosixPath(name).parts or ".." in PureWindowsPath(name).parts:
            raise BadSample(f"file name {name!r} leads out of the folder")
        return (base or self.path) / name

    def relative(self, path: Path) -> str:
        """A path as messages and fingerprints show it."""
        return path.relative_to(self.path).as_posix() if path.is_relative_to(self.path) else path.as_posix()

    def facts(self, path: Path) -> str:
        """A file's name, size in bytes and time of change in ns; a `BadSample` if it cannot be used."""
        name = self.relative(path)
        try:
            found = os.lstat(path)
            is_link = stat.S_ISLNK(found.st_mode)
            if not self.holds(path.parent) or (is_link and not self._is_inside(path)):
                raise BadSample(f"{name} is a link out of the folder; links are followed only inside it")
            if is_link:
                found = os.stat(path)
        except FileNotFoundError:
            raise BadSample(f"{name} is missing") from None
        except OSError as error:
            raise BadSample(f"{name} cannot be read ({error.strerror})") from None
        if not stat.S_ISREG(found.st_mode):
            raise BadSample(f"{name} is not a file")
        if found.st_size == 0:
            raise BadSample(f"{name} is empty (0 bytes)")
        return f"{name} {found.st_size} {found.st_mtime_ns}"

    def entries(self, folder: Path) -> list[os.DirEntry[str]]:
        """What is in a folder, sorted by name; a `BadSample` if it is a link to outside or cannot be read."""
        if not self.holds(folder):
            raise BadSample(f"{self.relative(folder)} is a link out of the folder; links are followed only inside it")
        try:
            with os.scandir(folder) as found:
                return sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            raise BadSample(f"folder {self.relative(folder)} cannot be read ({error.strerror})") from None

    def holds(self, folder: Path) -> bool:
        """Whether a folder is inside this one, once links are followed."""
        # Once for each folder, not for each file: a set has a hundred thousand files, but few folders.
        if folder not in self._held:
            self._held[folder] = self._is_inside(folder)
        return self._held[folder]

    def _is_inside(self, path: Path) -> bool:
        real = os.path.realpath(path)
        return real == self._real or real.startswith(self._real.rstrip(os.sep) + os.sep)


@dataclasses.dataclass(frozen=True)
class Record:
    """What a source keeps of one sample."""

    id: str
    image: Path
    labels: tuple[int, ...]
    facts: tuple[str, ...]
    """`Folder.facts` of the files that it came from."""
    boxes: Boxes | None = None
    mask: Callable[[], np.ndarray] | None = None


class FileSource(Source):
    """A source that keeps a list of `Record`s. A subclass calls `_keep` for each and ends with `_finish`.

    Args:
        name: for messages.
        on_bad: "stop" at bad data, or "skip" it.
        unlabelled: what to do with an image without a label.
        settings: option values that change what the source gives, for the fingerprint.
    """

    def __init__(self, name: str, on_bad: OnBad, unlabelled: Unlabelled, settings: Mapping[str, Any]) -> None:
        super().__init__(name, on_bad)
        self._unlabelled = UnlabelledRule(unlabelled)
        self._settings = {**settings, "unlabelled": unlabelled}
        self._records: list[Record] = []
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._records)

    def sample(self, index: int) -> Sample:
        record = self._records[index]
        return Sample(record.id, record.image, record.labels, record.boxes, record.mask)

    def labels_of(self, index: int) -> tuple[int, ...]:
        return self._records[index].labels

    def _identity(self) -> Iterator[str]:
        yield from (f"{option}={value}" for option, value in sorted(self._settings.items()))
        for record in self._records:
            yield record.id
            yield from record.facts

    def _keep(self, record: Record) -> None:
        """Add a sample, unless its id was there before or it has no label and that is not wanted."""
        if record.id in self._ids:
            self.problems.add(record.id, f"this id was there before; {record.facts[0].rsplit(' ', 2)[0]} is left out")
            return
        self._ids.add(record.id)
        try:
            if self._unlabelled.keeps(record.labels):
                self._records.append(record)
        except DataError as error:
            self.problems.add(record.id, str(error))

    def _choose_split(self, split: str | None) -> tuple[str, ...]:
        """The splits to read: the one asked for in its own word or the plain one, or all that there are."""
        if split is None:
            return self.splits
        self.split = choose_split(split, self.splits, self.name)
        return (self.split,)

    def _finish(self) -> None:
        self.notes += self._unlabelled.notes()
        self._settle()


def check_access(name: str, *paths: Path) -> None:
    """Refuse files and folders that are there but may not be read; those that are missing pass.

    Args:
        name: the source's.
        paths: files, or folders to be listed and entered.
    """
    for path in paths:
        # What else is wrong is told, with what was expected there, by whoever needs the file.
        with contextlib.suppress(OSError):
            _check_one(name, path)


def _check_one(name: str, path: Path) -> None:
    try:
        if path.is_dir():
            os.scandir(path).close()
            os.stat(os.path.join(path, "."))  # a folder may be listed and yet not be entered
        elif path.is_file():
            path.open("rb").close()
    except PermissionError as error:
        raise DataError(f"{name}: {path} cannot be read ({error.strerror}); mend its permissions") from None


def read_in_threads(read: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result | BadSample]:
    """What `read` gives for each item, in their order; its `BadSample`s are handed over, not raised."""

    def attempt(item: Item) -> Result | BadSample:
        try:
            return read(item)
        except BadSample as bad:
            return bad

    with ThreadPoolExecutor(max_workers=min(16, 2 * (os.cpu_count() or 1))) as threads:
        yield from threads.map(attempt, items)


def choose(option: str, value: str, offered: tuple[str, ...]) -> Any:
    """An option's value, if it is one of those offered."""
    if value not in offered:
        raise DataError(f"{option}: expected one of {', '.join(offered)}, got {value!r}")
    return value


def fraction(option: str, value: float) -> float:
    """An option's value, if it is a number from 0 to 1."""
    if not 0 <= value <= 1:
        raise DataError(f"{option}: expected a fraction of the image from 0 to 1, got {value}")
    return float(value)


def boxes_from(labels: list[int], corners: list[tuple[float, float, float, float]]) -> Boxes:
    """Boxes of a list of classes and one of left, top, right, bottom as fractions."""
    return Boxes(np.asarray(labels, dtype=np.int64), np.asarray(corners, dtype=np.float32).reshape(-1, 4))

"""Provide the base of sources whose samples are image files in a folder: safe file access and the list of samples."""

import contextlib
import dataclasses
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeVar

import numpy as np

from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.sample import Boxes, Corners, Sample
from contextcaps.data.source import Source, Unlabelled

__all__ = [
    "BadSample",
    "FileSource",
    "Folder",
    "Record",
    "check_access",
    "require_choice",
    "require_fraction",
    "clip_corners",
    "read_in_threads",
]

Item = TypeVar("Item")
Result = TypeVar("Result")


class BadSample(Exception):
    """Says in a phrase what is wrong with one sample; becomes one of the source's problems."""


class Folder:
    """Gives access to the files of a folder and to none outside: links that lead out are not followed.

    Args:
        path: the folder; may be a link itself, since the user named it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._real = os.path.realpath(path)
        self._held: dict[Path, bool] = {}

    def member(self, name: object, base: Path | None = None) -> Path:
        """Return the path of a file that the data names, relative to `base`; raise `BadSample` if it points outside."""
        if not isinstance(name, str) or not name.strip() or "\0" in name:
            raise BadSample(f"expected a file name, got {name!r}")
        if PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive or name.startswith("\\"):
            raise BadSample(f"file name {name!r} is absolute; expected one relative to the folder")
        if ".." in PurePosixPath(name).parts or ".." in PureWindowsPath(name).parts:
            raise BadSample(f"file name {name!r} leads out of the folder")
        return (base or self.path) / name

    def relative(self, path: Path) -> str:
        """Return a path as messages and fingerprints show it."""
        return path.relative_to(self.path).as_posix() if path.is_relative_to(self.path) else path.as_posix()

    def facts(self, path: Path) -> str:
        """Return a file's name, size in bytes and time of change in ns; raise `BadSample` if it cannot be used."""
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
        """List a folder by name; raise `BadSample` if it is a link to outside or cannot be read."""
        if not self.holds(folder):
            raise BadSample(f"{self.relative(folder)} is a link out of the folder; links are followed only inside it")
        try:
            with os.scandir(folder) as found:
                return sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            raise BadSample(f"folder {self.relative(folder)} cannot be read ({error.strerror})") from None

    def holds(self, folder: Path) -> bool:
        """Return whether a folder is inside this one, once links are followed."""
        # Once for each folder, not for each file: a set has a hundred thousand files, but few folders.
        if folder not in self._held:
            # Not a link, in a folder that is inside: no need to look at all the folders above, however many.
            is_plain = self._held.get(folder.parent, False) and not os.path.islink(folder)
            self._held[folder] = is_plain or self._is_inside(folder)
        return self._held[folder]

    def _is_inside(self, path: Path) -> bool:
        real = os.path.realpath(path)
        return real == self._real or real.startswith(self._real.rstrip(os.sep) + os.sep)


@dataclasses.dataclass(frozen=True)
class Record:
    """Holds what a source keeps of one sample."""

    id: str
    image: Path
    labels: tuple[int, ...]
    facts: tuple[str, ...]
    """`Folder.facts` of the files that it came from."""
    boxes: Boxes | None = None
    mask: Callable[[], np.ndarray] | None = None
    unknown: tuple[int, ...] = ()

    @classmethod
    def from_objects(
        cls,
        name: str,
        image: Path,
        objects: Sequence[tuple[int, Corners]],
        facts: tuple[str, ...],
        mask: Callable[[], np.ndarray] | None = None,
    ) -> "Record":
        """Return the record of an image with these objects: class index and box of each."""
        labels = tuple(sorted({label for label, _ in objects}))
        boxes = Boxes.from_lists([label for label, _ in objects], [corners for _, corners in objects])
        return cls(name, image, labels, facts, boxes, mask)


class FileSource(Source):
    """Keeps a list of `Record`s: a subclass's constructor calls `_keep` for each and ends with `_finish`.

    Args:
        name: for messages.
        on_bad: "stop" at bad data, or "skip" it.
        unlabelled: what to do with an image without a label.
        settings: option values that change what the source gives, for the fingerprint.
    """

    def __init__(self, name: str, on_bad: OnBad, unlabelled: Unlabelled, settings: Mapping[str, Any]) -> None:
        super().__init__(name, on_bad, unlabelled)
        self._settings = {**settings, "unlabelled": unlabelled}
        self._records: list[Record] = []
        self._ids: set[str] = set()
        self._without_extent = 0
        """Objects left out since their box has no extent in the image."""

    def __len__(self) -> int:
        return len(self._records)

    def sample(self, index: int) -> Sample:
        record = self._records[index]
        return Sample(record.id, record.image, record.labels, record.boxes, record.mask, record.unknown)

    def id_of(self, index: int) -> str:
        return self._records[index].id

    def labels_of(self, index: int) -> tuple[int, ...]:
        return self._records[index].labels

    def unknown_of(self, index: int) -> tuple[int, ...]:
        return self._records[index].unknown

    def _identity(self) -> Iterator[str]:
        yield from (f"{option}={value}" for option, value in sorted(self._settings.items()))
        for record in self._records:
            yield record.id
            yield from record.facts

    def _keep(self, record: Record) -> None:
        """Add a sample, unless its id is taken or it has no label and such images are left out."""
        if record.id in self._ids:
            self.problems.add(record.id, f"this id was there before; {record.facts[0].rsplit(' ', 2)[0]} is left out")
            return
        self._ids.add(record.id)
        try:
            if self._keeps(record.labels or record.unknown):
                self._records.append(record)
        except DataError as error:
            self.problems.add(record.id, str(error))

    def _finish(self) -> None:
        """Note what was left out, then check the whole."""
        if self._without_extent:
            self.notes.append(f"{self._without_extent} objects whose box has no extent in the image not counted")
        self._settle()


def check_access(name: str, *paths: Path) -> None:
    """Raise for files and folders that are there but may not be read; those that are missing pass.

    Args:
        name: the source's name, for the message.
        paths: files, or folders to be listed and entered.
    """
    for path in paths:
        # Whoever needs the file reports other errors, with what was expected there.
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
    """Yield the result of `read` for each item, in order; its `BadSample`s are yielded, not raised."""

    def attempt(item: Item) -> Result | BadSample:
        try:
            return read(item)
        except BadSample as bad:
            return bad

    with ThreadPoolExecutor(max_workers=min(16, 2 * (os.cpu_count() or 1))) as threads:
        yield from threads.map(attempt, items)


def require_choice(option: str, value: str, offered: tuple[str, ...]) -> None:
    """Raise unless an option's value is one of those offered."""
    if value not in offered:
        raise DataError(f"{option}: expected one of {', '.join(offered)}, got {value!r}")


def require_fraction(option: str, value: float) -> None:
    """Raise unless an option's value is a number from 0 to 1."""
    if not 0 <= value <= 1:
        raise DataError(f"{option}: expected a fraction of the image from 0 to 1, got {value}")


def clip_corners(corners: Iterable[float]) -> Corners | None:
    """Clip a box at the image's edges; return None if nothing of it is left."""
    left, top, right, bottom = (min(max(value, 0.0), 1.0) for value in corners)
    return (left, top, right, bottom) if right > left and bottom > top else None

"""Find and load COCO's annotation files, and the images they name, where the tools that write them put them.

| written by   | annotation files                                   | images                            |
|--------------|----------------------------------------------------|-----------------------------------|
| COCO         | annotations/instances_train2017.json               | train2017/, images/train2017/     |
| CVAT         | annotations/instances_default.json                 | images/default/, images/          |
| Label Studio | result.json                                        | images/                           |
| Roboflow     | train/_annotations.coco.json, valid/…, test/…      | beside each                       |
| FiftyOne     | labels.json                                        | data/                             |
"""

import dataclasses
import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeGuard

from contextcaps.data.file_source import BadSample, Folder, check_access
from contextcaps.data.image_files import is_clutter
from contextcaps.data.problems import DataError
from contextcaps.data.vocabulary import canonical_split
from contextcaps.plain_files import LARGE, NotPlain, require_plain

__all__ = ["Index", "PhotoFinder", "find_indices", "load_index", "looks_like_coco"]

_FILE_NAME = re.compile(r"instances_([a-z_-]+?)_?(\d{4})?\.json", re.IGNORECASE)
_ROBOFLOW = "_annotations.coco.json"
_HEAD = 1 << 16
"""Bytes in which a file of another name has to show a key of COCO's."""


@dataclasses.dataclass(frozen=True)
class Index:
    """Describes one annotation file."""

    path: Path
    word: str
    """Split in the file's name, such as "train"; empty if the name has none."""
    year: int | None = None

    @property
    def split(self) -> str:
        return canonical_split(self.word) or self.word.lower()

    @property
    def label(self) -> str:
        """Return its name for messages, with its folder where all files have the same name."""
        return f"{self.path.parent.name}/{self.path.name}" if self.path.name == _ROBOFLOW else self.path.name


def find_indices(name: str, location: Path, year: int | None) -> tuple[Path, list[Index]]:
    """Return the folder that holds the images, and the annotation files, train before val before others.

    Args:
        name: the source's name, for messages.
        location: the folder, or one annotation file.
        year: the year to take, where there are files of several.
    """
    check_access(name, location)
    if location.is_file():
        matched = _FILE_NAME.fullmatch(location.name)
        root = location.parent.parent if location.parent.name == "annotations" else location.parent
        return root, [Index(location, matched[1] if matched else "", _year(matched))]
    if not str(location) or not location.is_dir():
        raise DataError(f"{name}: expected COCO's folder or an instances_*.json, found neither")
    holder = location / "annotations" if os.path.isdir(location / "annotations") else location
    check_access(name, holder)
    folder = Folder(location)
    try:
        found = [(Path(entry.path), _FILE_NAME.fullmatch(entry.name)) for entry in folder.entries(holder)]
        indices = [Index(path, matched[1], _year(matched)) for path, matched in found if matched]
        indices = indices or _roboflow_indices(folder) or _other_indices(name, folder, holder)
        for index in indices:
            folder.facts(index.path)
    except BadSample as bad:
        raise DataError(f"{name}: {bad}") from None
    if not indices:
        raise DataError(f"{name}: expected annotations/instances_train2017.json or the like, found none in {holder}")
    years = sorted({index.year for index in indices if index.year is not None})
    if year is not None:
        indices = [index for index in indices if index.year == year]
    if not indices or (year is None and len({index.year for index in indices}) > 1):
        offered = ", ".join(str(each) for each in years)
        raise DataError(f"{name}: there are files of the years {offered}; choose one with year={years[-1]}")
    order = {"train": 0, "val": 1, "test": 2}
    return location, sorted(indices, key=lambda index: (order.get(index.split, 3), index.split))


def _roboflow_indices(folder: Folder) -> list[Index]:
    """Return the file of each split's folder, or the one of a single split."""
    found = []
    for entry in folder.entries(folder.path):
        path = Path(entry.path) / _ROBOFLOW
        if not is_clutter(entry.name) and entry.is_dir() and os.path.lexists(path):
            found.append(Index(path, entry.name))
    single = folder.path / _ROBOFLOW
    return found or ([Index(single, "")] if os.path.lexists(single) else [])


def _other_indices(name: str, folder: Folder, holder: Path) -> list[Index]:
    """Return files of other names that begin like COCO's; more than one is told apart by splits in their names."""
    entries = [*folder.entries(holder), *(folder.entries(folder.path) if holder != folder.path else ())]
    paths = [Path(entry.path) for entry in entries if entry.name.lower().endswith(".json")]
    paths = [path for path in paths if not is_clutter(path.name) and looks_like_coco(path)]
    if len(paths) == 1:
        return [Index(paths[0], "")]
    words = [[word for word in re.split(r"[\W_]+", path.stem) if canonical_split(word)] for path in paths]
    if not all(len(found) == 1 for found in words):
        listed = ", ".join(path.name for path in paths)
        raise DataError(f"{name}: expected one annotation file, or one for each split, got {listed}; name one of them")
    return [Index(path, found[0]) for path, found in zip(paths, words, strict=True)]


def looks_like_coco(path: Path) -> bool:
    """Return whether a file begins like one of COCO's; Datumaro's own format, which has items, does not."""
    try:
        require_plain(path)
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except (OSError, NotPlain):
        return False
    keys = set(re.findall(rb'"(images|annotations|items)"\s*:', head))
    return head.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] == b"{" and bool(keys - {b"items"}) and b"items" not in keys


def _year(matched: re.Match[str] | None) -> int | None:
    return int(matched[2]) if matched and matched[2] else None


def load_index(path: Path) -> dict[str, Any]:
    """Read an annotation file without the outlines, which are most of it."""

    def without_outline(entry: dict[str, Any]) -> dict[str, Any]:
        entry.pop("segmentation", None)
        return entry

    try:
        require_plain(path, most=LARGE)
        with path.open(encoding="utf-8-sig") as file:
            content = json.load(file, object_hook=without_outline)
    except NotPlain as error:
        raise DataError(str(error)) from None
    except (ValueError, RecursionError) as error:  # also of text that is no UTF-8, and of numbers without end
        raise DataError(f"{path}: not JSON, or cut off ({error}); fetch the file again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if isinstance(content, dict) and isinstance(content.get("items"), list):
        raise DataError(f"{path}: Datumaro's own format is not read; export again as COCO 1.0")
    if isinstance(content, list) and content and isinstance(content[0], dict) and "data" in content[0]:
        raise DataError(f"{path}: Label Studio's own JSON is not read; export again as COCO")
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise DataError(f"{path}: expected a list of {key}, as in COCO's instances_*.json; there is none")
    return content


class PhotoFinder:
    """Finds the images of one annotation file.

    A file name is relative to the first of some usual folders in which it is found. Where it is in none, an image of
    the same base name in one of them is taken: Label Studio writes where its server had a file, such as
    `..\\..\\media\\upload\\4\\1a2b-photo.jpg`, and the image lies in images/.

    Args:
        name: the source's name, for messages.
        folder: the folder that no image is outside of.
        index: the annotation file.
        file_names: all file names in it.
        images_given: whether the folder is one that the user named for the images.
    """

    def __init__(
        self, name: str, folder: Folder, index: Index, file_names: Iterable[object], images_given: bool
    ) -> None:
        self._folder, self.by_base_name = folder, 0
        if index.path.name == _ROBOFLOW and not images_given:
            bases = [index.path.parent]
        else:
            with_year = f"{index.word}{index.year or ''}"
            tried = [f"{base}{word}" for word in (with_year, index.word) for base in ("", "images/") if word]
            bases = [folder.path / each for each in dict.fromkeys((*tried, "images", "data", ""))]
        bases = [base for base in bases if os.path.isdir(base)]
        if not folder.holds(bases[0]):
            raise DataError(f"{name}: {bases[0]} is a link out of the folder; if that is meant, name it as images=")
        self._bases = [base for base in bases if folder.holds(base)]
        counts = Counter(_base_name(each) for each in set(filter(_is_text, file_names)))
        self._ambiguous = {each for each, count in counts.items() if count > 1}

    def find(self, file_name: object) -> tuple[Path, str]:
        """Return the path of an image and its `Folder.facts`; raise `BadSample` if there is none."""
        try:
            slashed = self._folder.member(file_name).relative_to(self._folder.path).as_posix().replace("\\", "/")
            missing = BadSample(f"{self._folder.relative(self._bases[0] / slashed)} is missing")
            found = self._first(slashed)
        except BadSample as bad:
            missing, found = bad, None
        if found is None and _is_text(file_name) and _base_name(file_name) not in self._ambiguous:
            found = self._first(_base_name(file_name))
            self.by_base_name += found is not None
        if found is None:
            raise missing
        return found, self._folder.facts(found)

    def _first(self, name: str) -> Path | None:
        return next((base / name for base in self._bases if name and os.path.lexists(base / name)), None)

    def places(self) -> str:
        """Return where images were looked for, for a message."""
        return ", ".join(str(base) for base in self._bases)


def _is_text(name: object) -> TypeGuard[str]:
    return isinstance(name, str)


def _base_name(name: str) -> str:
    """Return what follows the last slash of either kind, or the question of Label Studio's local files.

    >>> _base_name("/data/local-files/?d=a.jpg"), _base_name("..\\\\upload\\\\4\\\\a.jpg")
    ('a.jpg', 'a.jpg')
    """
    return re.split(r"[/\\]|\?d=", name)[-1]

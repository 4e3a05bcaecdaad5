"""Read COCO (Lin et al., Microsoft COCO: Common Objects in Context, https://cocodataset.org) and sets in its format.

annotations/instances_train2017.json, annotations/instances_val2017.json
train2017/*.jpg, val2017/*.jpg            (or under images/)
"""

import dataclasses
import json
import math
import os
import re
from pathlib import Path
from typing import Any

from contextcaps.data.file_source import (
    BadSample,
    FileSource,
    Folder,
    Record,
    check_access,
    clip_corners,
    require_fraction,
)
from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.sample import Corners
from contextcaps.data.source import Unlabelled
from contextcaps.data.vocabulary import canonical_split

__all__ = ["COCOSource"]

_FILE_NAME = re.compile(r"instances_([a-z_-]+?)_?(\d{4})?\.json", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class _Index:
    """Describes one annotation file."""

    path: Path
    word: str
    """Split in the file's name, such as "train"; empty if the name has none."""
    year: int | None

    @property
    def split(self) -> str:
        return canonical_split(self.word) or self.word.lower()


class COCOSource(FileSource):
    """Reads COCO: a class is present if the image has an annotation of it that counts.

    An annotation counts unless it is a crowd (iscrowd = 1: a group outlined as one), smaller than `min_area`, or has a
    box without extent in the image, which is noted. Boxes are those of the annotations that count, cut off at the
    image's edges. Classes are in the order of the category ids. A sample's id is the split and the image's id
    ("val-139"), since sets other than COCO number each split from 1. Samples are in the file's order.

    Args:
        location: the folder that holds annotations/, or one instances_*.json.
        on_bad: "stop" at bad data, or "skip" it.
        split: "train", "val" or another that has a file; None opens all, one after the other.
        year: the year to read, where there are files of several.
        images: the folder of the images or of the splits' folders; by default looked for beside annotations/.
        crowd: whether crowds count.
        min_area: least area of an annotation (its `area` field), as a fraction of the image's.
        unlabelled: an image without any class is a problem ("refuse"), left out ("drop") or kept ("keep").
    """

    kind = "coco"

    def __init__(
        self,
        location: str,
        *,
        on_bad: OnBad = "stop",
        split: str | None = None,
        year: int | None = None,
        images: str | None = None,
        crowd: bool = False,
        min_area: float = 0.0,
        unlabelled: Unlabelled = "drop",
    ) -> None:
        super().__init__(f"coco:{location}", on_bad, unlabelled, {"crowd": crowd, "min_area": min_area})
        require_fraction("min_area", min_area)
        self._crowd, self._min_area = crowd, min_area
        self.classes = ()
        root, indices = _find_indices(self.name, Path(location), year)
        self.root = f"{os.path.realpath(root)} {os.path.realpath(images) if images else ''}"
        self.splits = tuple(index.split for index in indices if index.word)
        chosen = self._choose_split(split)
        for index in indices:
            if index.split in chosen or not index.word:
                self._read(index, root, images)
        self._finish()

    def _read(self, index: _Index, root: Path, images: str | None) -> None:
        content = _load(index.path)
        labels = self._read_categories(index.path, content["categories"])
        found = index.path.stat()
        self._settings[index.path.name] = f"{found.st_size} {found.st_mtime_ns}"
        folder = Folder(Path(images) if images else root)
        if images and not os.path.isdir(images):
            raise DataError(f"{self.name}: images: expected a folder, found none at {images}")
        photos = _find_photos(self.name, folder, index)

        pictures: dict[int | str, dict[str, Any]] = {}
        for number, picture in enumerate(content["images"]):
            where = f"{index.path.name}, image {number + 1}"
            if not isinstance(picture, dict) or not isinstance(picture.get("id"), int | str):
                self.problems.add(where, f"expected an image with an id, got {str(picture)[:80]}")
            elif picture["id"] in pictures:
                self.problems.add(where, f"id {picture['id']} was there before; this image is left out")
            else:
                pictures[picture["id"]] = picture

        objects: dict[int | str, list[tuple[int, Corners]]] = {key: [] for key in pictures}
        bad: dict[int | str, str] = {}
        for number, annotation in enumerate(content["annotations"]):
            key = annotation.get("image_id") if isinstance(annotation, dict) else None
            if not isinstance(key, int | str) or key not in pictures:
                self.problems.add(f"{index.path.name}, annotation {number + 1}", f"no image has its image_id {key!r}")
                continue
            try:
                counted = self._read_annotation(annotation, pictures[key], labels)
            except BadSample as error:
                bad.setdefault(key, str(error))
            else:
                objects[key] += counted

        for key, picture in pictures.items():
            name = f"{index.split}-{key}" if index.word else str(key)
            try:
                if key in bad:
                    raise BadSample(bad[key])
                photo = folder.member(picture.get("file_name"), photos)
                facts = (folder.facts(photo),)
            except BadSample as error:
                self.problems.add(name, str(error))
                continue
            self._keep(Record.from_objects(name, photo, objects[key], facts))

    def _read_categories(self, path: Path, categories: list[Any]) -> dict[int, int]:
        """Return category id → class index; raise if the classes are not the same in all files."""
        try:
            ordered = sorted((int(category["id"]), str(category["name"])) for category in categories)
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{path}: expected categories with id and name, got {str(categories)[:80]}") from None
        names = tuple(name for _, name in ordered)
        if not names or len({number for number, _ in ordered}) < len(names) or len(set(names)) < len(names):
            raise DataError(f"{path}: expected categories whose ids and names differ, got {str(ordered)[:200]}")
        if self.classes and self.classes != names:
            raise DataError(f"{path}: its categories differ from those of the other splits; open one split at a time")
        self.classes = names
        return {number: label for label, (number, _) in enumerate(ordered)}

    def _read_annotation(
        self, annotation: dict[str, Any], picture: dict[str, Any], labels: dict[int, int]
    ) -> list[tuple[int, Corners]]:
        """Return the class and box of an annotation, in a list that is empty if it does not count."""
        number = annotation.get("id")
        category = annotation.get("category_id")
        if not isinstance(category, int) or category not in labels:
            raise BadSample(f"annotation {number}: category_id {category!r} is not among the categories")
        width, height = (_number(picture, "image", side) for side in ("width", "height"))
        if width <= 0 or height <= 0:
            raise BadSample(f"image size {width}×{height} px: expected more than 0")
        if annotation.get("iscrowd") and not self._crowd:
            return []
        if self._min_area > 0 and _number(annotation, f"annotation {number}", "area") < self._min_area * width * height:
            return []
        box = annotation.get("bbox")
        if not isinstance(box, list) or len(box) != 4:
            raise BadSample(f"annotation {number}: expected bbox [x, y, width, height], got {str(box)[:80]}")
        x, y, across, down = (_number({"bbox": value}, f"annotation {number}", "bbox") for value in box)
        corners = clip_corners((x / width, y / height, (x + across) / width, (y + down) / height))
        if corners is None:
            self._without_extent += 1
            return []
        return [(labels[category], corners)]


def _number(entry: dict[str, Any], what: str, key: str) -> float:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadSample(f"{what}: expected a number as {key}, got {value!r}")
    return float(value)


def _load(path: Path) -> dict[str, Any]:
    """Read an annotation file without the outlines, which are most of it."""

    def without_outline(entry: dict[str, Any]) -> dict[str, Any]:
        entry.pop("segmentation", None)
        return entry

    try:
        with path.open(encoding="utf-8") as file:
            content = json.load(file, object_hook=without_outline)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not JSON, or cut off ({error}); fetch the file again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise DataError(f"{path}: expected a list of {key}, as in COCO's instances_*.json; there is none")
    return content


def _find_indices(name: str, location: Path, year: int | None) -> tuple[Path, list[_Index]]:
    """Return the folder that holds the images, and the annotation files, train before val before others."""
    check_access(name, location)
    if location.is_file():
        matched = _FILE_NAME.fullmatch(location.name)
        root = location.parent.parent if location.parent.name == "annotations" else location.parent
        return root, [_Index(location, matched[1] if matched else "", _year(matched))]
    if not str(location) or not location.is_dir():
        raise DataError(f"{name}: expected COCO's folder or an instances_*.json, found neither")
    holder = location / "annotations" if os.path.isdir(location / "annotations") else location
    check_access(name, holder)
    folder = Folder(location)
    try:
        found = [(Path(entry.path), _FILE_NAME.fullmatch(entry.name)) for entry in folder.entries(holder)]
        indices = [_Index(path, matched[1], _year(matched)) for path, matched in found if matched]
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


def _year(matched: re.Match[str] | None) -> int | None:
    return int(matched[2]) if matched and matched[2] else None


def _find_photos(name: str, folder: Folder, index: _Index) -> Path:
    """Find the folder that an annotation file's file names are relative to."""
    with_year = f"{index.word}{index.year or ''}"
    tried = [f"{base}{word}" for word in (with_year, index.word) for base in ("", "images/") if word]
    for each in (*tried, "images", ""):
        photos = folder.path / each
        if os.path.isdir(photos):
            if not folder.holds(photos):
                raise DataError(f"{name}: {photos} is a link out of the folder; if that is meant, name it as images=")
            return photos
    raise DataError(f"{name}: expected the images in one of {', '.join(tried)}; name their folder as images=")

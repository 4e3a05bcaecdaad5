"""Read COCO (Lin et al., Microsoft COCO: Common Objects in Context, https://cocodataset.org) and sets in its format.

annotations/instances_train2017.json, annotations/instances_val2017.json
train2017/*.jpg, val2017/*.jpg            (or under images/)

`coco_files.py` has the places where CVAT, Label Studio, Roboflow and FiftyOne put the same.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contextcaps.data.file_source import (
    BadSample,
    FileSource,
    Folder,
    Record,
    clip_corners,
    require_fraction,
)
from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.sample import Corners
from contextcaps.data.source import Unlabelled
from contextcaps.data.sources.coco_files import Index, PhotoFinder, find_indices, load_index
from contextcaps.documents import counted

__all__ = ["COCOSource"]

_MOST_PIXELS = 1e15
"""No side, place or area of an image is beyond it."""


class COCOSource(FileSource):
    """Reads COCO: a class is present if the image has an annotation of it that counts.

    An annotation counts unless it is a crowd (iscrowd = 1: a group outlined as one), smaller than `min_area`, or has a
    box without extent in the image, which is noted. A category that only groups others, as Roboflow adds one, is left
    out if nothing is annotated with it. Boxes are those of the annotations that count, cut off at the
    image's edges. Classes are in the order of the category ids. A sample's id is the split and the image's id
    ("val-139"), since sets other than COCO number each split from 1. Samples are in the file's order.

    Args:
        location: the folder that holds annotations/, result.json or the splits' folders, or one annotation file.
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
        root, indices = find_indices(self.name, Path(location), year)
        self.root = f"{os.path.realpath(root)} {os.path.realpath(images) if images else ''}"
        self.splits = tuple(index.split for index in indices if index.word)
        chosen = self._choose_split(split)
        for index in indices:
            if index.split in chosen or not index.word:
                self._read(index, indices, root, images)
        self._finish()

    def _read(self, index: Index, indices: Sequence[Index], root: Path, images: str | None) -> None:
        content = load_index(index.path)
        categories = self._without_groups(content["categories"], indices)
        labels = self._read_categories(index.path, categories)
        found = index.path.stat()
        self._settings[index.label] = f"{found.st_size} {found.st_mtime_ns}"
        folder = Folder(Path(images) if images else root)
        if images and not os.path.isdir(images):
            raise DataError(f"{self.name}: images: expected a folder, found none at {images}")
        file_names = [picture.get("file_name") for picture in content["images"] if isinstance(picture, dict)]
        photos = PhotoFinder(self.name, folder, index, file_names, images is not None)

        pictures: dict[str, dict[str, Any]] = {}
        for number, picture in enumerate(content["images"]):
            where = f"{index.label}, image {number + 1}"
            key = _key(picture.get("id")) if isinstance(picture, dict) else None
            if key is None:
                self.problems.add(where, f"expected an image with an id, got {str(picture)[:80]}")
            elif key in pictures:
                self.problems.add(where, f"id {key} was there before; this image is left out")
            else:
                pictures[key] = picture

        objects: dict[str, list[tuple[int, Corners]]] = {key: [] for key in pictures}
        bad: dict[str, str] = {}
        for number, annotation in enumerate(content["annotations"]):
            image = annotation.get("image_id") if isinstance(annotation, dict) else None
            key = _key(image)
            if key is None or key not in pictures:
                self.problems.add(f"{index.label}, annotation {number + 1}", f"no image has its image_id {image!r}")
                continue
            try:
                counted_objects = self._read_annotation(annotation, pictures[key], labels)
            except BadSample as error:
                bad.setdefault(key, str(error))
            else:
                objects[key] += counted_objects

        missing: dict[str, str] = {}
        for key, picture in pictures.items():
            name = f"{index.split}-{key}" if index.word else key
            try:
                photo, facts = photos.find(picture.get("file_name"))
                if key in bad:
                    raise BadSample(bad[key])
            except BadSample as error:
                missing[name] = str(error)
                self.problems.add(name, str(error))
            else:
                self._keep(Record.from_objects(name, photo, objects[key], (facts,)))
        if pictures and len(missing) == len(pictures) and not bad:
            raise DataError(
                f"{index.path}: none of its {counted(len(pictures), 'image')} can be used, such as "
                f"{next(iter(missing.values()))}; looked in {photos.places()}; name their folder as images=FOLDER, or "
                "export again with images"
            )
        if photos.by_base_name:
            self.assumptions.append(
                f"{counted(photos.by_base_name, 'image')} of {index.label} found by the base name: where the file "
                "names lead, there are none"
            )

    def _without_groups(self, categories: list[Any], indices: Sequence[Index]) -> list[Any]:
        """Leave out categories that have no annotation in any file and are only the `supercategory` of others."""
        entries = [category for category in categories if isinstance(category, dict)]
        parents = {str(category.get("supercategory")) for category in entries}
        groups = [
            category
            for category in entries
            if category.get("supercategory") in (None, "", "none") and str(category.get("name")) in parents
        ]
        if not groups:
            return categories
        annotations = (each for index in indices for each in load_index(index.path)["annotations"])
        used = {_key(each.get("category_id")) for each in annotations if isinstance(each, dict)}
        groups = [category for category in groups if _key(category.get("id")) not in used]
        for group in groups:
            note = f"category {group.get('name')!r} left out: it only groups others, and nothing is annotated with it"
            if note not in self.assumptions:
                self.assumptions.append(note)
        return [category for category in categories if category not in groups]

    def _read_categories(self, path: Path, categories: list[Any]) -> dict[str, int]:
        """Return category id → class index; raise if the classes are not the same in all files."""
        try:
            named = [(_key(category["id"]), str(category["name"])) for category in categories]
        except (KeyError, TypeError):
            raise DataError(f"{path}: expected categories with id and name, got {str(categories)[:80]}") from None
        ids = [each for each, _ in named]
        if None in ids:
            raise DataError(f"{path}: expected numbers or text as ids of categories, got {str(categories)[:80]}")
        if all(re.fullmatch(r"-?\d+", str(each)) for each in ids):
            named.sort(key=lambda each: int(str(each[0])))
        names = tuple(name for _, name in named)
        if not names or len(set(ids)) < len(ids) or len(set(names)) < len(names):
            raise DataError(f"{path}: expected categories whose ids and names differ, got {str(named)[:200]}")
        if self.classes and self.classes != names:
            raise DataError(f"{path}: its categories differ from those of the other splits; open one split at a time")
        self.classes = names
        return {str(key): label for label, (key, _) in enumerate(named)}

    def _read_annotation(
        self, annotation: dict[str, Any], picture: dict[str, Any], labels: dict[str, int]
    ) -> list[tuple[int, Corners]]:
        """Return the class and box of an annotation, in a list that is empty if it does not count."""
        number = annotation.get("id")
        category = _key(annotation.get("category_id"))
        if category is None or category not in labels:
            given = annotation.get("category_id")
            raise BadSample(f"annotation {number}: category_id {given!r} is not among the categories")
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


def _key(value: object) -> str | None:
    """Return an id as text, so that 7 and "7" are the same, as some tools mix them; None for what is no id."""
    return None if isinstance(value, bool) or not isinstance(value, int | str) else str(value).strip()


def _number(entry: dict[str, Any], what: str, key: str) -> float:
    value = entry.get(key)
    # Compared, as a whole number of hundreds of digits is no float; false for NaN, too.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST_PIXELS:
        raise BadSample(f"{what}: expected a number as {key}, got {repr(value)[:80]}")
    return float(value)

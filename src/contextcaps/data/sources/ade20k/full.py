"""Read the full releases of ADE20K, of 2016 and 2021: a file beside each image lists its objects by name.

2016, X_atr.txt, a line for each object or part:
    instance # part level (0: an object) # occluded # class name with synonyms # name as written # "attributes"
2021, X.json: {"annotation": {"imsize": [H, W, 3], "object": [{"name", "name_ndx", "parts": {"part_level"},
    "polygon": {"x": [...], "y": [...]}}, ...]}}
Both, X_seg.png: a pixel's class number is R // 10 · 256 + G.
"""

import collections
import dataclasses
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from contextcaps.data.file_source import BadSample, Folder, Record, clip_corners, read_in_threads
from contextcaps.data.masks import check_sizes, photo_size, read_mask
from contextcaps.data.problems import DataError
from contextcaps.data.sample import Boxes, Corners
from contextcaps.data.sources.ade20k.classes import BENCHMARK_CLASSES, RELEASE_INDICES, NameMap, split_names
from contextcaps.plain_files import NotPlain, read_bytes

__all__ = ["FullRelease"]


class SceneObject(NamedTuple):
    """Describes an object in an image."""

    name: str
    """Class name in lower case, with synonyms."""
    number: int | None
    """Class number in _seg.png; None where the release has none."""
    corners: Corners | None
    """None where the release has no outlines."""


@dataclasses.dataclass(frozen=True)
class Scene:
    """Holds an image of a full release with its objects."""

    image: Path
    mask: Path
    facts: tuple[str, ...]
    objects: tuple[SceneObject, ...]
    without_extent: int
    """Objects left out since their outline has no extent in the image."""


class FullRelease:
    """Reads a full release: first the annotations, split by split, then samples for one list of classes.

    Args:
        folder: the release's folder.
        layout: "full2016" or "full2021".
    """

    def __init__(self, folder: Folder, layout: str) -> None:
        self.folder, self._read_objects = folder, {"full2016": _read_attributes, "full2021": _read_json}[layout]
        self._annotation = {"full2016": "_atr.txt", "full2021": ".json"}[layout]
        self._scenes: dict[str, list[Scene]] = {}
        self.problems: dict[str, list[tuple[str, str]]] = {}
        """Split → where something is wrong, and what."""
        self.without_extent: collections.Counter[str] = collections.Counter()
        """Split → objects left out since their outline has no extent in the image."""

    def read(self, base: Path, split: str) -> None:
        """Read a split's annotations."""
        problems = self.problems[split] = []
        photos = sorted(self._find_photos(base, problems), key=lambda path: (path.stem, path))
        scenes = self._scenes[split] = []
        for photo, scene in zip(photos, read_in_threads(self._read_scene, photos), strict=True):
            if isinstance(scene, BadSample):
                problems.append((self.folder.relative(photo), str(scene)))
            else:
                scenes.append(scene)
                self.without_extent[split] += scene.without_extent

    def all_names(self, min_count: int) -> tuple[str, ...]:
        """Return the object names in at least `min_count` of the images read so far, sorted."""
        counts: collections.Counter[str] = collections.Counter()
        for scene in (scene for scenes in self._scenes.values() for scene in scenes):
            counts.update({item.name for item in scene.objects})
        return tuple(sorted(name for name, count in counts.items() if count >= min_count))

    def records(
        self, split: str, names: tuple[str, ...] | None, min_area: float
    ) -> Iterator[tuple[str, Record | BadSample]]:
        """Yield a split's samples, sorted by id: the place of each, for messages, and its record or what is wrong.

        Args:
            split: one that was read.
            names: the classes, from `all_names`; None for the benchmark's 150.
            min_area: least area of a class in _seg.png, as a fraction of the image; 0: do not look there.
        """
        benchmark = NameMap(BENCHMARK_CLASSES)
        position = {name: index for index, name in enumerate(names or ())}
        find = benchmark.get if names is None else position.get
        scenes = self._scenes[split]
        make = functools.partial(_record, find=functools.cache(find), benchmark=names is None, min_area=min_area)
        where = (self.folder.relative(scene.image) for scene in scenes)
        yield from zip(where, read_in_threads(make, scenes), strict=True)

    def _find_photos(self, folder: Path, problems: list[tuple[str, str]]) -> Iterator[Path]:
        end = self._annotation
        try:
            entries = self.folder.entries(folder)
        except BadSample as bad:
            problems.append((self.folder.relative(folder), str(bad)))
            return
        photos = {Path(entry.name).stem: Path(entry.path) for entry in entries if entry.name.endswith(".jpg")}
        annotated = {name.removesuffix(end) for name in (entry.name for entry in entries) if name.endswith(end)}
        named = photos.keys() | annotated
        yield from photos.values()
        missing = sorted(named - photos.keys())
        problems += [(self.folder.relative(folder / stem), f"{stem}.jpg is missing") for stem in missing]
        for entry in entries:
            path = Path(entry.path)
            if entry.is_dir() and entry.is_symlink():
                problems.append((self.folder.relative(path), "is a link to a folder; links are not followed"))
            # A folder named as a photo holds the masks of its instances, 700,000 files in all, which are not needed.
            elif entry.is_dir() and entry.name not in named:
                yield from self._find_photos(path, problems)

    def _read_scene(self, photo: Path) -> Scene:
        annotation = photo.with_name(photo.stem + self._annotation)
        mask = photo.with_name(f"{photo.stem}_seg.png")
        facts = tuple(self.folder.facts(path) for path in (photo, annotation, mask))
        size = photo_size(photo)
        check_sizes(mask, size, ("RGB",))
        objects, without_extent = self._read_objects(annotation, size)
        return Scene(photo, mask, facts, tuple(objects), without_extent)


def _record(scene: Scene, *, find: Any, benchmark: bool, min_area: float) -> Record:
    """Return a scene's sample; `find` returns a name's class index or None."""
    labelled = [(label, item) for item in scene.objects if (label := find(item.name)) is not None]
    numbers = {item.number: label for label, item in labelled if item.number is not None}
    if not numbers and benchmark:
        numbers = dict(RELEASE_INDICES)
    mask = functools.partial(_class_mask, scene.mask, tuple(sorted(numbers.items()))) if numbers else None
    labels = {label for label, _ in labelled}
    if min_area > 0 and labels and mask is not None:
        try:
            values = mask()
        except DataError as error:
            raise BadSample(str(error)) from None
        counts = np.bincount(values.ravel(), minlength=max(labels) + 2)
        labels = {label for label in labels if counts[label + 1] >= min_area * values.size}
    boxed = [(label, item.corners) for label, item in labelled if item.corners is not None and label in labels]
    boxes = Boxes.from_lists([label for label, _ in boxed], [corners for _, corners in boxed]) if boxed else None
    return Record(scene.image.stem, scene.image, tuple(sorted(labels)), scene.facts, boxes, mask)


def _class_mask(path: Path, numbers: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Return class index + 1 [H, W] from a _seg.png; `numbers` pairs class numbers and class indices."""
    colours = read_mask(path).astype(np.int32)
    table = np.zeros(26 * 256, dtype=np.int32)  # R // 10 is at most 25
    for number, label in numbers:
        table[number] = label + 1
    return table[colours[..., 0] // 10 * 256 + colours[..., 1]]


def _read_attributes(path: Path, size: tuple[int, int]) -> tuple[list[SceneObject], int]:
    """Read the objects in an _atr.txt, which has no outlines; parts of objects are left out."""
    objects = []
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split("#", 5)]
        if len(fields) < 4 or not fields[1].isdigit():
            raise BadSample(f"{path.name}, line {number}: expected instance # level # occluded # name, got {line!r}")
        if int(fields[1]) == 0 and (name := _clean_name(fields[3])):
            objects.append(SceneObject(name, None, None))
    return objects, 0


def _read_json(path: Path, size: tuple[int, int]) -> tuple[list[SceneObject], int]:
    """Read the objects in a JSON of the 2021 release, and count those without extent; parts of objects are left out."""
    try:
        annotation = json.loads(_read_text(path), strict=False)["annotation"]
        height, width = (int(value) for value in annotation["imsize"][:2])
        if (width, height) != size:
            raise BadSample(f"{path.name}: imsize says {width}×{height} px, the image is {size[0]}×{size[1]} px")
        objects, without_extent = [], 0
        for item in _as_list(annotation["object"]):
            name = _clean_name(item["name"]) if isinstance(item["name"], str) else ""
            if int(item["parts"]["part_level"]) == 0 and name:
                number, corners = _class_number(item["name_ndx"]), _corners(item["polygon"], size)
                if corners is None:
                    without_extent += 1
                else:
                    objects.append(SceneObject(name, number, corners))
        return objects, without_extent
    except json.JSONDecodeError as error:
        raise BadSample(f"{path.name}: not JSON, or cut off ({error})") from None
    except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise BadSample(f"{path.name}: not as in the 2021 release ({type(error).__name__}: {error})") from None


def _read_text(path: Path) -> str:
    """Read text that is UTF-8 or, in some files of the releases, Latin-1."""
    try:
        content = read_bytes(path)
    except OSError as error:
        raise BadSample(f"{path.name} cannot be read ({error.strerror})") from None
    except NotPlain as error:
        raise BadSample(str(error)) from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _clean_name(text: str) -> str:
    """Return a name in lower case with single spaces; empty for "-", which stands for no name."""
    name = ", ".join(split_names(text)).lower()
    return sys.intern(name) if any(letter.isalnum() for letter in name) else ""


def _as_list(value: Any) -> list[Any]:
    """Return a list; MATLAB, which wrote the JSON, writes a list of one element as that element."""
    return value if isinstance(value, list) else [value]


def _class_number(value: Any) -> int:
    if not 0 <= int(value) < 26 * 256:
        raise ValueError(f"name_ndx {value} out of range")
    return int(value)


def _corners(polygon: dict[str, Any], size: tuple[int, int]) -> Corners | None:
    """Return the box around a polygon, clipped at the image's edges; None if it has no extent there."""
    x, y = ([float(value) / side for value in _as_list(polygon[axis])] for axis, side in zip("xy", size, strict=True))
    return clip_corners((min(x), min(y), max(x), max(y))) if x and y else None

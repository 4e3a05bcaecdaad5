"""Read Pascal VOC (Everingham et al., The Pascal Visual Object Classes Challenge), 2007 to 2012.

VOCdevkit/VOC2012/ImageSets/Main/train.txt (and val, trainval, test): an id in each line
VOCdevkit/VOC2012/Annotations/ID.xml, JPEGImages/ID.jpg, SegmentationClass/ID.png (for some of the images)
"""

import functools
import math
import os
import re
import xml.etree.ElementTree as ElementTree
import xml.parsers.expat
from pathlib import Path
from typing import Literal

import numpy as np

from contextcaps.data.file_source import (
    BadSample,
    FileSource,
    Folder,
    Record,
    check_access,
    clip_corners,
    require_choice,
)
from contextcaps.data.masks import check_sizes, read_mask
from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.sample import Corners
from contextcaps.data.source import Unlabelled
from contextcaps.plain_files import LARGE, NotPlain, read_bytes, read_text

__all__ = ["VOC_CLASSES", "VOCSource"]

VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
"""The 20 classes in the usual order."""

_LISTS = ("train", "val", "trainval", "test")
_VOID = 255  # the masks' value for borders and objects left out


class VOCSource(FileSource):
    """Reads Pascal VOC: a class is present if the image has an object of it that counts.

    Objects marked "difficult" (hard to tell without the surroundings) do not count by default: a class seen only in
    difficult objects is absent. The challenge's own evaluation goes further and leaves such an image out of that
    class's average precision, which a set of labels cannot say; so results differ slightly from its. With
    `difficult="positive"` they count like any other. Objects whose box has no extent in the image do not count and are
    noted. Boxes are those of the objects that count; masks show all.

    Args:
        location: the folder VOC2007, VOC2012 or the like, VOCdevkit, or the one above it.
        on_bad: "stop" at bad data, or "skip" it.
        split: "train", "val", "trainval" or "test", where there is such a list; None opens all, train before val
            before test, each image once.
        year: the year to read, where there are several.
        difficult: whether difficult objects are left out ("ignore") or count ("positive").
        unlabelled: an image without any class is a problem ("refuse"), left out ("drop") or kept ("keep").
    """

    kind = "voc"

    def __init__(
        self,
        location: str,
        *,
        on_bad: OnBad = "stop",
        split: str | None = None,
        year: int | None = None,
        difficult: Literal["ignore", "positive"] = "ignore",
        unlabelled: Unlabelled = "drop",
    ) -> None:
        super().__init__(f"voc:{location}", on_bad, unlabelled, {"difficult": difficult})
        require_choice("difficult", difficult, ("ignore", "positive"))
        self._ignores_difficult = difficult == "ignore"
        self.classes = VOC_CLASSES
        self._folder = Folder(_find_year(self.name, location, year))
        self.root = os.path.realpath(self._folder.path)
        lists = self._folder.path / "ImageSets" / "Main"
        others = ("Annotations", "JPEGImages", "SegmentationClass")
        check_access(self.name, lists, *(self._folder.path / each for each in others))
        self.splits = tuple(name for name in _LISTS if os.path.isfile(lists / f"{name}.txt"))
        if not self.splits:
            raise DataError(
                f"{self.name}: expected train.txt, val.txt, trainval.txt or test.txt in {lists}, found none"
            )
        earlier: set[str] = set()
        for name in self._choose_split(split):
            listed = self._read_list(lists / f"{name}.txt")
            for each in listed:
                if each not in earlier:  # trainval repeats train and val
                    self._read(each)
            earlier.update(listed)
        self._finish()

    def _read_list(self, path: Path) -> list[str]:
        try:
            self._folder.facts(path)
            return [line.split()[0] for line in read_text(path, most=LARGE).splitlines() if line.strip()]
        except BadSample as bad:
            raise DataError(f"{self.name}: {bad}") from None
        except (OSError, NotPlain, UnicodeDecodeError) as error:
            raise DataError(f"{self.name}: {path.name} cannot be read ({error})") from None

    def _read(self, name: str) -> None:
        folder = self._folder
        try:
            photo = folder.member(f"{name}.jpg", folder.path / "JPEGImages")
            annotation = folder.member(f"{name}.xml", folder.path / "Annotations")
            mask = folder.member(f"{name}.png", folder.path / "SegmentationClass")
            has_mask = os.path.lexists(mask)
            facts = tuple(folder.facts(path) for path in (photo, annotation, *([mask] if has_mask else [])))
            size, objects = self._read_objects(annotation)
            if has_mask:
                check_sizes(mask, size, ("P", "L"))
        except BadSample as bad:
            self.problems.add(name, str(bad))
            return
        reader = functools.partial(_class_mask, mask) if has_mask else None
        self._keep(Record.from_objects(name, photo, objects, facts, reader))

    def _read_objects(self, path: Path) -> tuple[tuple[int, int], list[tuple[int, Corners]]]:
        """Return the image's width and height in pixels, and the classes and boxes of the objects that count."""
        root = _parse(path)
        width, height = (_number(root, f"size/{side}", path) for side in ("width", "height"))
        if width < 1 or height < 1:
            raise BadSample(f"{path.name}: size {width}×{height} px: expected at least 1")
        objects = []
        for item in root.iterfind("object"):
            name = (item.findtext("name") or "").strip()
            if name not in self.classes:
                raise BadSample(f"{path.name}: {name!r} is none of the {len(self.classes)} classes")
            if self._ignores_difficult and (item.findtext("difficult") or "").strip() == "1":
                continue
            left, top, right, bottom = (
                _number(item, f"bndbox/{key}", path) for key in ("xmin", "ymin", "xmax", "ymax")
            )
            # Pixels are counted from 1, and the last belongs to the box.
            corners = clip_corners(((left - 1) / width, (top - 1) / height, right / width, bottom / height))
            if corners is None:
                self._without_extent += 1
            else:
                objects.append((self.classes.index(name), corners))
        return (int(width), int(height)), objects


def _find_year(name: str, location: str, year: int | None) -> Path:
    """Find the folder of one year: the location, or below it, or below its VOCdevkit."""
    root = Path(location)
    check_access(name, root, root / "VOCdevkit")
    if not location or not root.is_dir():
        raise DataError(f"{name}: expected the folder VOCdevkit or VOC2012 or the like, found no such folder")
    try:
        found = [root] if _is_voc(root) else []
        for holder in (root, root / "VOCdevkit"):
            if not found and os.path.isdir(holder):
                below = [entry for entry in Folder(root).entries(holder) if entry.is_dir(follow_symlinks=False)]
                found = [Path(entry.path) for entry in below if _is_voc(Path(entry.path))]
    except BadSample as bad:
        raise DataError(f"{name}: {bad}") from None
    if not found:
        raise DataError(f"{name}: expected VOC2012 or the like with Annotations, ImageSets and JPEGImages, found none")
    matching = [each for each in found if year is None or re.search(str(year), each.resolve().name)]
    if len(matching) != 1:
        offered = ", ".join(each.name for each in found)
        wanted = "name one of them or choose with year=" if year is None else f"year={year} is not among them"
        raise DataError(f"{name}: found {offered}; {wanted}")
    return matching[0]


def _is_voc(folder: Path) -> bool:
    return all(os.path.isdir(folder / name) for name in ("Annotations", "ImageSets", "JPEGImages"))


def _parse(path: Path) -> ElementTree.Element:
    """Parse an XML file and return its root; refuse a DOCTYPE, so that no entity can be defined or expanded."""
    builder = ElementTree.TreeBuilder()
    parser = xml.parsers.expat.ParserCreate()

    def refuse(*declaration: object) -> None:
        raise BadSample(f"{path.name}: XML with a DOCTYPE is not read")

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(read_bytes(path), True)
    except xml.parsers.expat.ExpatError as error:
        raise BadSample(f"{path.name}: not XML, or cut off ({error})") from None
    except NotPlain as error:
        raise BadSample(str(error)) from None
    except OSError as error:
        raise BadSample(f"{path.name} cannot be read ({error.strerror})") from None
    return builder.close()


def _number(element: ElementTree.Element, key: str, path: Path) -> float:
    text = element.findtext(key)
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadSample(f"{path.name}: expected a number as {key}, got {text!r}")
    return value


def _class_mask(path: Path) -> np.ndarray:
    values = read_mask(path).astype(np.int32)  # class index + 1 already, but for the void
    values[values == _VOID] = 0
    if values.max() > len(VOC_CLASSES):
        raise DataError(f"{path}: expected values 0 to {len(VOC_CLASSES)} and {_VOID} in the mask, got {values.max()}")
    return values

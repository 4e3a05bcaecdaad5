"""Read a folder per class, as torchvision's ImageFolder does: `folders:PATH`.

cat/1.jpg, dog/2.jpg                 or, with splits, train/cat/1.jpg, val/dog/2.jpg

An image that lies in the folders of several classes has all of their labels.
"""

import filecmp
import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from contextcaps.data.decoding_limits import MAX_BYTES
from contextcaps.data.file_source import BadSample, FileSource, Folder, Record, check_access
from contextcaps.data.image_files import is_clutter, looks_like_image, walk_images
from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.source import Unlabelled
from contextcaps.data.vocabulary import Vocabulary, canonical_split
from contextcaps.documents import counted

__all__ = ["FoldersSource"]


_OF_OTHER_LAYOUTS = ("annotations", "images", "jpegimages", "imagesets", "labels")
"""Folders, in lower case, that are no classes: those of COCO, VOC, YOLO and ADE20K."""


class FoldersSource(FileSource):
    """Gives the images under a folder per class, at any depth; a sample's id is its path.

    Folders named like splits (train, valid, test, …) that hold folders are splits. Each class has a folder in one of
    the splits at least. Copies of an image under the same name in several classes' folders are one sample.

    Args:
        location: the folder that holds the folders of the classes, or of the splits.
        on_bad: "stop" at bad data, or "skip" it.
        split: one of the splits, if there are any; None opens all.
        unlabelled: as for other kinds; here every image has a label.
    """

    kind = "folders"

    def __init__(
        self, location: str, *, on_bad: OnBad = "stop", split: str | None = None, unlabelled: Unlabelled = "refuse"
    ) -> None:
        super().__init__(f"folders:{location}", on_bad, unlabelled, {})
        root = Path(location)
        check_access(self.name, root)
        if not location or not root.is_dir():
            raise DataError(f"{self.name}: expected a folder that holds a folder for each class, found no such folder")
        self._folder = Folder(root)
        self.root = os.path.realpath(root)
        self._not_images: list[str] = []
        try:
            found = self._find_classes(root)
        except BadSample as bad:
            raise DataError(f"{self.name}: {bad}") from None
        images = {part: self._list_images(folders) for part, folders in found.items()}
        without = [part for part, each in images.items() if part and not each]
        if without:
            self.assumptions.append(f"{counted(len(without), 'split')} without an image left out: {_shown(without)}")
        self.splits = tuple(part for part in images if part and part not in without)
        names = {path.name: None for folders in found.values() for path in folders}
        self._refuse_other_layouts(names)
        with_images = {name for each in images.values() for name in each}
        vocabulary = Vocabulary(None)
        met = [(name, index) for name in names if name in with_images for index in vocabulary.add([name])]
        self.classes, final = vocabulary.final()
        self.assumptions += vocabulary.assumptions()
        self._label_of = {name: int(final[index]) for name, index in met}
        if len(self.classes) == 1:
            only = self.classes[0]
            raise DataError(f"{self.name}: expected folders of two or more classes, found images in one only: {only}")
        empty = sorted(set(names) - with_images)
        if empty:
            self.assumptions.append(f"{counted(len(empty), 'folder')} without an image left out: {_shown(empty)}")
        if self._not_images:
            count = counted(len(self._not_images), "file")
            self.assumptions.append(f"{count} without an image's suffix left out: {_shown(self._not_images)}")
        for part in self._choose_split(split) or ("",):
            self._read(images[part])
        self._finish()

    def _find_classes(self, root: Path) -> dict[str, list[Path]]:
        """Return the folders of the classes by split; the split is "" where there are none."""
        folders, images = self._content(root)
        if not folders:
            what = "only images, of which nothing says what they show" if images else "no folder"
            raise DataError(f"{self.name}: expected a folder for each class, found {what}")
        content = {path: self._content(path) for path in folders}
        named = [path for path in folders if canonical_split(path.name) is not None]
        parts = [path for path in named if content[path][0]]
        if parts:
            others = [path.name for path in folders if path not in parts]
            if others:
                what = "neither train, val nor test with folders of classes"
                self.assumptions.append(f"{counted(len(others), 'folder')} left out, {what}: {_shown(others)}")
            for path in parts:
                self._note_loose(content[path][1], path)
            return {path.name: content[path][0] for path in sorted(parts, key=_order)}
        if len(named) > 1 or (named and len(named) == len(folders)):
            holders = " and ".join(path.name for path in named)
            raise DataError(f"{self.name}: expected a folder for each class in {holders}, found none")
        if len(folders) == 1 and content[folders[0]][0] and not content[folders[0]][1]:
            raise DataError(
                f"{self.name}: expected folders of several classes, found only {folders[0].name}, which holds folders; "
                f"one folder deeper: folders:{folders[0]}"
            )
        self._note_loose(images, root)
        return {"": folders}

    def _refuse_other_layouts(self, names: Iterable[str]) -> None:
        other = next((name for name in names if name.lower() in _OF_OTHER_LAYOUTS), None)
        if other is not None:
            raise DataError(f"{self.name}: expected a folder for each class, found {other}, a part of other layouts")

    def _content(self, holder: Path) -> tuple[list[Path], list[str]]:
        """Return the folders in a folder, and the names of the images that lie beside them."""
        entries = [entry for entry in self._folder.entries(holder) if not is_clutter(entry.name)]
        folders = [holder / entry.name for entry in entries if entry.is_dir()]
        for folder in folders:
            if not self._folder.holds(folder):
                raise BadSample(f"{self._folder.relative(folder)} is a link out of the folder; copy what it leads to")
        images = [entry.name for entry in entries if not entry.is_dir() and looks_like_image(entry.name)]
        return folders, images

    def _note_loose(self, images: list[str], holder: Path) -> None:
        if images:
            where = "the folders of the classes" if holder == self._folder.path else f"{holder.name}'s folders"
            self.assumptions.append(f"{counted(len(images), 'image')} beside {where} left out: {_shown(images)}")

    def _list_images(self, folders: Iterable[Path]) -> dict[str, list[Path]]:
        """Return the images of each class that has any."""
        listed: dict[str, list[Path]] = {}
        for folder in folders:
            try:
                images, others = walk_images(self._folder, folder)
            except BadSample as bad:
                raise DataError(f"{self.name}: {bad}") from None
            self._not_images += [self._folder.relative(path) for path in others]
            if images:
                listed[folder.name] = images
        return listed

    def _read(self, images: dict[str, list[Path]]) -> None:
        """Keep the images of a split, copies in several classes' folders once."""
        found: list[tuple[str, Path, str]] = []
        for name, paths in images.items():
            for path in paths:
                try:
                    fact = self._folder.facts(path)
                except BadSample as bad:
                    self.problems.add(self._folder.relative(path), str(bad))
                    continue
                found.append((name, path, fact))
        sizes = Counter(_name_and_size(path, fact) for _, path, fact in found)
        alike: dict[tuple[str, int, bytes], list[Path]] = {}
        records: dict[Path, tuple[set[int], str]] = {}
        for name, path, fact in found:
            key = _name_and_size(path, fact)
            # Only where sizes agree: frames of a film without compression all have one size, and often the same names.
            same = alike.setdefault((*key, _beginning(path) if sizes[key] > 1 else b""), [])
            copy = next((other for other in same if _same_bytes(other, path)), None)
            if copy is None:
                same.append(path)
                records[path] = (set(), fact)
            records[copy or path][0].add(self._label_of[name])
        for path, (labels, fact) in records.items():
            self._keep(Record(self._folder.relative(path), path, tuple(sorted(labels)), (fact,)))
        several = sum(len(labels) > 1 for labels, _ in records.values())
        if several:
            self.assumptions.append(
                f"{counted(several, 'image')} in the folders of several classes: each has all their labels"
            )


def _name_and_size(path: Path, fact: str) -> tuple[str, int]:
    return path.name, int(fact.rsplit(" ", 2)[1])


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.sha256(file.read(1 << 16)).digest()
    except OSError:
        return b""  # reported when the image is decoded


def _same_bytes(one: Path, other: Path) -> bool:
    try:
        return one.stat().st_size <= MAX_BYTES and filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False


def _order(path: Path) -> tuple[int, str]:
    """Sort train before val before test."""
    return ("train", "val", "test").index(canonical_split(path.name) or "test"), path.name


def _shown(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

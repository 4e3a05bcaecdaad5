"""Read YOLO's text files, as Ultralytics and the tools that export for it write them: `yolo:PATH` or `yolo:data.yaml`.

data.yaml                            path, train, val, test, names
images/train/1.jpg                   or train/images/1.jpg
labels/train/1.txt                   or train/labels/1.txt: an object in each line, "class x y w h" or an outline
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from contextcaps.data.file_source import BadSample, FileSource, Folder, Record, check_access, clip_corners
from contextcaps.data.image_files import looks_like_image, walk_images
from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.sample import Corners
from contextcaps.data.source import Unlabelled
from contextcaps.data.sources.yolo_yaml import Description, find_description, find_from_end
from contextcaps.documents import counted
from contextcaps.plain_files import LARGE, NotPlain, read_text

__all__ = ["YOLOSource"]


class YOLOSource(FileSource):
    """Reads YOLO's labels: a class is present if the image's text file has an object of it.

    The text file of images/…/1.jpg is labels/…/1.txt; without a folder images/ it lies beside the image. An empty text
    file means an image without a class, and so does a missing one, which is noted. Boxes are those of the lines, for
    outlines the boxes around them, cut off at the image's edges. A sample's id is its path.

    Args:
        location: data.yaml, or the folder that it is in. Without one, classes.txt names the classes.
        on_bad: "stop" at bad data, or "skip" it.
        split: "train", "val" or "test", where data.yaml names it; None opens all.
        root: the folder that the paths in data.yaml are relative to; by default its `path`, or its own folder.
        unlabelled: an image without any class is a problem ("refuse"), left out ("drop") or kept ("keep").
    """

    kind = "yolo"

    def __init__(
        self,
        location: str,
        *,
        on_bad: OnBad = "stop",
        split: str | None = None,
        root: str | None = None,
        unlabelled: Unlabelled = "drop",
    ) -> None:
        super().__init__(f"yolo:{location}", on_bad, unlabelled, {})
        if not location:
            raise DataError(f"{self.name}: expected data.yaml or the folder that holds it, found no name")
        check_access(self.name, Path(location), *([] if root is None else [Path(root)]))
        if root is not None and not os.path.isdir(root):
            raise DataError(f"{self.name}: option root: no such folder: {root}")
        description = find_description(self.name, Path(location), None if root is None else Path(root))
        self.classes = description.classes
        self._box_first = description.has_keypoints
        self._folder = Folder(description.root)
        self.root = os.path.realpath(description.root)
        self._label_folders: dict[Path, Path] = {}
        """Folder of images → folder of their text files."""
        self._without_file = 0
        self._with_file = 0
        self.assumptions += description.notes
        self.splits = tuple(part for part in description.parts if part)
        listed = {part: self._list_images(description, part) for part in description.parts}
        self._refuse_overlap(listed)
        images = [image for part in self._choose_split(split) or ("",) for image in listed[part]]
        for image in images:
            self._read(image)
        if not self._with_file and images:
            expected = self._folder.relative(self._label_file(images[0]))
            raise DataError(
                f"{self.name}: expected a text file for each image, such as {expected} for "
                f"{self._folder.relative(images[0])}; found none"
            )
        if self._without_file:
            self.assumptions.append(f"{counted(self._without_file, 'image')} without a text file: without a label")
        self._finish()

    def _list_images(self, description: Description, part: str) -> list[Path]:
        """Return the images of a part, each once."""
        images: dict[Path, None] = {}
        for place in description.parts[part]:
            try:
                found = list(self._listed(place)) if place.is_file() else walk_images(self._folder, place)[0]
            except BadSample as bad:
                raise DataError(f"{self.name}: {bad}") from None
            if not found:
                where = self._folder.relative(place)
                raise DataError(
                    f"{self.name}: {part or 'images'}: expected images in {where}, found none; add them, or take "
                    f"{part or 'it'} out"
                )
            images.update(dict.fromkeys(found))
        return list(images)

    def _refuse_overlap(self, listed: dict[str, list[Path]]) -> None:
        """Raise if two parts share images: what is learned would be tested on what it was learned from."""
        part_of: dict[Path, str] = {}
        for part, images in listed.items():
            shared = [image for image in images if image in part_of]
            if shared:
                first = self._folder.relative(shared[0])
                raise DataError(
                    f"{self.name}: {counted(len(shared), 'image')} of {part}, such as {first}, also in "
                    f"{part_of[shared[0]]}; expected different images in each"
                )
            part_of.update(dict.fromkeys(images, part))

    def _listed(self, path: Path) -> Iterator[Path]:
        """Yield the images that a text file lists, relative to it or to the root."""
        self._folder.facts(path)
        try:
            lines = read_text(path, encoding="utf-8-sig", most=LARGE).splitlines()
        except (OSError, NotPlain, UnicodeDecodeError) as error:
            raise DataError(f"{self.name}: {path} cannot be read ({error})") from None
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            found = find_from_end(line.strip(), (path.parent, self._folder.path), least=2)
            if found is not None and looks_like_image(found.name):
                yield found
            else:
                what = "is not there" if found is None else "is no image by its suffix"
                self.problems.add(f"{self._folder.relative(path)}, line {number}", f"{line.strip()} {what}")

    def _read(self, image: Path) -> None:
        name = self._folder.relative(image)
        try:
            facts = [self._folder.facts(image)]
            label_file = self._label_file(image)
            objects: list[tuple[int, Corners]] = []
            if os.path.lexists(label_file):
                self._with_file += 1
                if os.path.getsize(label_file):  # an empty one says that there is nothing in the image
                    facts.append(self._folder.facts(label_file))
                    objects = self._objects(label_file)
            else:
                self._without_file += 1
        except (BadSample, OSError) as bad:
            self.problems.add(name, str(bad))
            return
        self._keep(Record.from_objects(name, image, objects, tuple(facts)))

    def _label_file(self, image: Path) -> Path:
        """Return the text file of an image: under labels/ in the place of the last images/, or beside it."""
        parent, name = image.parent, f"{image.stem}.txt"
        if parent not in self._label_folders:
            parts = list(parent.relative_to(self._folder.path).parts)
            if "images" in parts:
                parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
            self._label_folders[parent] = self._folder.path.joinpath(*parts)
        mirrored = self._label_folders[parent] / name
        return parent / name if not os.path.lexists(mirrored) and os.path.lexists(parent / name) else mirrored

    def _objects(self, path: Path) -> list[tuple[int, Corners]]:
        """Return the class and box of each line of a text file."""
        objects = []
        try:
            lines = read_text(path, encoding="utf-8-sig").splitlines()
        except NotPlain as error:
            raise BadSample(str(error)) from None
        except UnicodeDecodeError:
            raise BadSample(f"{self._folder.relative(path)}: expected lines of numbers, it is no text") from None
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                label, corners = self._object(line.split())
            except ValueError as error:
                raise BadSample(f"{self._folder.relative(path)}, line {number}: {error}") from None
            if corners is None:
                self._without_extent += 1
            else:
                objects.append((label, corners))
        return objects

    def _object(self, words: Sequence[str]) -> tuple[int, Corners | None]:
        """Return class and box of one line's words, a box of None without extent; raise ValueError if they are none."""
        try:
            first, *values = (float(word) for word in words)
        except ValueError:
            raise ValueError(f"expected numbers, got {' '.join(words)[:60]!r}") from None
        if not first.is_integer() or not 0 <= first < len(self.classes):
            count = len(self.classes)
            raise ValueError(f"class {words[0]}: expected 0 to {count - 1}, since there are {count} names")
        is_box = len(values) == 4 or (self._box_first and len(values) > 4)
        if not is_box and (len(values) < 6 or len(values) % 2):
            raise ValueError(f"expected class x y width height, or an outline of 3 points; got {len(words)} numbers")
        if not all(-0.1 <= value <= 1.1 for value in (values[:4] if is_box else values)):  # false for NaN, too
            raise ValueError("expected fractions of the image from 0 to 1, not pixels; got " + " ".join(words[1:5]))
        if is_box:
            x, y, width, height = values[:4]
            return int(first), clip_corners((x - width / 2, y - height / 2, x + width / 2, y + height / 2))
        across, down = values[0::2], values[1::2]
        return int(first), clip_corners((min(across), min(down), max(across), max(down)))

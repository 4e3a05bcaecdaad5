"""Read ADEChallengeData2016: a photo and an 8-bit mask for each image, values 1 to 150 for the classes, 0 for other."""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from contextcaps.data.file_source import BadSample, Folder, Record, read_in_threads
from contextcaps.data.masks import count_values, photo_size, read_mask
from contextcaps.data.sources.ade20k.classes import split_names
from contextcaps.plain_files import NotPlain, read_text

__all__ = ["read_challenge", "read_object_info"]


def read_object_info(path: Path) -> tuple[tuple[str, ...], ...]:
    """Read each class's synonyms from objectInfo150.txt: tab-separated, with a header that ends in Name."""
    try:
        lines = read_text(path).splitlines()
    except (OSError, NotPlain, UnicodeDecodeError) as error:
        raise BadSample(f"{path.name} cannot be read ({error})") from None
    rows = [line.split("\t") for line in lines if line.strip()]
    if not rows or rows[0][0].lower() != "idx" or rows[0][-1].strip().lower() != "name":
        raise BadSample(f"{path.name}: expected a tab-separated table with columns from Idx to Name")
    classes = []
    for number, row in enumerate(rows[1:], start=1):
        names = split_names(row[-1])
        if row[0].strip() != str(number) or len(row) != len(rows[0]) or not names:
            raise BadSample(f"{path.name}, line {number + 1}: expected Idx {number} and a name, got {row}")
        classes.append(names)
    if not classes or len({names[0] for names in classes}) != len(classes):
        raise BadSample(f"{path.name}: expected classes with names that differ, found {len(classes)}")
    return tuple(classes)


def read_challenge(
    folder: Folder, word: str, class_count: int, min_area: float
) -> Iterator[tuple[str, Record | BadSample]]:
    """Yield a split's samples, sorted by id: the place of each, for messages, and its record or what is wrong.

    Args:
        folder: ADEChallengeData2016.
        word: "training" or "validation".
        class_count: the masks' greatest value.
        min_area: least area of a class, as a fraction of the image.
    """
    photos, masks = folder.path / "images" / word, folder.path / "annotations" / word
    photo_stems = {Path(entry.name).stem for entry in folder.entries(photos) if entry.name.lower().endswith(".jpg")}
    mask_stems = {Path(entry.name).stem for entry in folder.entries(masks) if entry.name.lower().endswith(".png")}
    stems = sorted(photo_stems | mask_stems)

    def read(stem: str) -> Record:
        photo, mask = photos / f"{stem}.jpg", masks / f"{stem}.png"
        facts = folder.facts(photo), folder.facts(mask)
        counts = count_values(mask, photo_size(photo))
        beyond = np.flatnonzero(counts[class_count + 1 :]) + class_count + 1
        if len(beyond):
            values = ", ".join(str(value) for value in beyond)
            raise BadSample(f"mask {folder.relative(mask)}: expected values 0 to {class_count}, got {values}")
        present = (counts > 0) & (counts >= min_area * counts.sum())
        labels = tuple(int(value) - 1 for value in np.flatnonzero(present) if value)
        return Record(stem, photo, labels, facts, mask=functools.partial(_class_mask, mask))

    yield from zip((f"{word}/{stem}" for stem in stems), read_in_threads(read, stems), strict=True)


def _class_mask(path: Path) -> np.ndarray:
    return read_mask(path).astype(np.int32)  # the values are class index + 1 already

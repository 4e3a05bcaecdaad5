"""Doubt lists of classes that come from a mistake in the labels, and would be trained on without a word."""

import re
from collections.abc import Sequence

import numpy as np

from contextcaps.data.label_cells import parts_recur
from contextcaps.data.source import Source

__all__ = ["class_doubts"]

_SEPARATORS = (";", ",", "|", "/", "+", "&", "\n", "\t", " ")
_NO_NAMES = ("nan", "none", "null", "n/a", "na", "#n/a", "undefined", "unlabeled", "unlabelled", "?", "-", "-1")
_TRUTHS = {"0", "1", "0.0", "1.0", "true", "false", "yes", "no"}
_LEAST_IMAGES = 10
"""Below this many images, a class for each says little."""
_NEARLY_EVERY = 0.8
_SHOWN = 3


def class_doubts(source: Source) -> list[str]:
    """Return a sentence for each thing that makes a source's list of classes look wrong; none if it looks right."""
    counts = (source.targets() == 1).sum(axis=0, dtype=np.int64)  # [J]
    used = [name for name, count in zip(source.classes, counts, strict=True) if count]
    doubts = [*_joined(source.classes), *_not_names(source.classes), *_near(source.classes)]
    every = [name for name, count in zip(source.classes, counts, strict=True) if count == len(source)]
    if every and len(source) >= _LEAST_IMAGES:
        doubts.append(f"every image has {_some(every)}: nothing can be learned of a class that is never absent")
    single = [name for name, count in zip(source.classes, counts, strict=True) if count == 1]
    if len(source) >= _LEAST_IMAGES and len(used) >= _NEARLY_EVERY * len(source):
        doubts.append(
            f"there are {len(used):,} classes in {len(source):,} images, such as {_some(used)}: are these the labels?"
        )
    elif len(used) > 3 and 2 * len(single) > len(used):
        doubts.append(
            f"{len(single):,} of {len(used):,} classes have a single image, such as {_some(single)}: nothing can be "
            "learned of them"
        )
    return doubts


def _joined(classes: Sequence[str]) -> list[str]:
    """Doubt classes that look like several labels in one."""
    for separator in _SEPARATORS:
        joined = [name for name in classes if separator in name.strip()]
        if separator == "/" and not _parts_move(joined):
            continue  # animal/cat, animal/dog: names of a hierarchy
        if joined and parts_recur(set(classes), separator):
            return [
                f"{len(joined):,} of {len(classes):,} classes contain {separator!r} and share parts, such as "
                f"{_some(joined)}: several labels in one? (separator={separator} divides the labels of a table)"
            ]
    return []


def _parts_move(names: Sequence[str]) -> bool:
    """Return whether a part is the first of one name and a later one of another."""
    first = {name.split("/")[0].strip() for name in names}
    return any(part.strip() in first for name in names for part in name.split("/")[1:])


def _not_names(classes: Sequence[str]) -> list[str]:
    """Doubt classes that are values, not names."""
    if {name.lower() for name in classes} <= _TRUTHS:
        return [f"the classes are {_some(classes)}: expected names; is the column of labels that of a single class?"]
    doubts = []
    signs = [name for name in classes if re.search(r"[\[\]{}\"]|^'|'$", name)]
    if signs:
        doubts.append(f"{_some(signs)}: looks like a part of a list or of JSON, not like the name of a class")
    empty = [name for name in classes if name.lower() in _NO_NAMES]
    if empty:
        doubts.append(f"{_some(empty)} as a class looks like a missing value")
    numbers = [name for name in classes if re.fullmatch(r"-?\d+\.\d*[1-9]\d*", name)]
    if 2 * len(numbers) > len(classes):
        doubts.append(f"{len(numbers):,} of {len(classes):,} classes are numbers, such as {_some(numbers)}")
    return doubts


def _near(classes: Sequence[str]) -> list[str]:
    """Doubt classes whose names differ only in what stands between words, in case, or in a plural."""
    groups: dict[str, list[str]] = {}
    for name in classes:
        key = re.sub(r"[\s_.'\"-]+", "", name.casefold())
        groups.setdefault(key.removesuffix("s") or name, []).append(name)
    near = [" and ".join(map(repr, names)) for names in groups.values() if len(names) > 1]
    more = f" and {len(near) - _SHOWN} more" if len(near) > _SHOWN else ""
    return [f"classes with nearly the same name: {'; '.join(near[:_SHOWN])}{more}"] if near else []


def _some(names: Sequence[str]) -> str:
    return ", ".join(repr(name if len(name) <= 40 else name[:39] + "…") for name in names[:_SHOWN])

"""Map names of classes to indices, and the usual names of splits to each other."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from contextcaps.data.problems import DataError

__all__ = ["Vocabulary", "canonical_split", "choose_split", "read_classes"]

_SPLIT_WORDS = {
    "train": ("train", "training", "trn"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "tst"),
}
"""Plain name of a split → the names that data sets use for it."""


class Vocabulary:
    """Maps class names to indices.

    With a given list, a label outside of it is refused. Without one, names are collected in the order of their first
    use, and get their final indices (sorted by name) once all are known: `final` maps the earlier indices to those.
    """

    def __init__(self, given: Sequence[str] | None, where: str = "the given classes") -> None:
        self.given = given is not None
        self.where = where
        self._indices = {name: index for index, name in enumerate(given or ())}

    def __len__(self) -> int:
        return len(self._indices)

    def add(self, labels: Iterable[object]) -> list[int]:
        """Return the indices of labels, which are names or, with a given list, indices; add all of them or none.

        Raises:
            DataError: a label that is not in the given list, or that is neither a name nor an index.
        """
        labels = list(labels)
        for label in labels:
            self._check(label)
        return [
            label if isinstance(label, int) else self._indices.setdefault(str(label), len(self._indices))
            for label in labels
        ]

    def _check(self, label: object) -> None:
        if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
            raise DataError(f"label {label!r}: expected the name of a class, or its index")
        if isinstance(label, int) and not self.given:
            raise DataError(f"label {label} is an index, which needs a list of classes (option classes=FILE)")
        if isinstance(label, int) and not 0 <= label < len(self):
            raise DataError(f"label {label}: expected an index from 0 to {len(self) - 1} into {self.where}")
        if isinstance(label, str) and self.given and label not in self._indices:
            raise DataError(f"label {label!r} is not among the {len(self)} classes of {self.where}")

    def final(self) -> tuple[tuple[str, ...], np.ndarray]:
        """Return the classes in their final order, and [J] int64: the final index of each index returned by `add`."""
        names = list(self._indices)
        classes = tuple(names) if self.given else tuple(sorted(names))
        position = {name: index for index, name in enumerate(classes)}
        return classes, np.array([position[name] for name in names], dtype=np.int64)


def read_classes(path: Path) -> tuple[str, ...]:
    """Read class names from a file, in order: a JSON list of strings (.json), or one name per line (any other)."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: the list of classes cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected a list of classes as UTF-8 text, byte {error.start} is not") from None
    if path.suffix.lower() == ".json":
        try:
            names = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: expected a JSON list of class names, it breaks off or is bad: {error}") from None
    else:
        names = [line.strip() for line in text.rstrip().splitlines()]
    if not isinstance(names, list) or not names:
        raise DataError(f"{path}: expected a list of class names, got {'none' if names == [] else type(names)}")
    seen: set[str] = set()
    for position, name in enumerate(names, start=1):
        if not isinstance(name, str) or not name:
            raise DataError(f"{path}: entry {position}: expected the name of a class, got {name!r}")
        if name in seen:
            raise DataError(f"{path}: entry {position}: the class {name!r} stands in the list twice")
        seen.add(name)
    return tuple(names)


def canonical_split(word: str) -> str | None:
    """Return train, val or test for a usual name of a split, with or without a year; None for other words."""
    lowered = word.strip().lower().rstrip("0123456789").rstrip("-_")
    return next((plain for plain, words in _SPLIT_WORDS.items() if lowered in words), None)


def choose_split(asked: str, splits: Sequence[str], where: str) -> str:
    """Return the one of a source's splits that is asked for by its own name or by another usual name for it."""
    if asked in splits:
        return asked
    plain = canonical_split(asked)
    meant = [split for split in splits if plain is not None and canonical_split(split) == plain]
    if len(meant) == 1:
        return meant[0]
    raise DataError(f"{where}: no split {asked!r}; it has {', '.join(splits) or 'no splits of its own'}")

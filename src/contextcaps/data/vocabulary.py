"""Map names of classes to indices, and the usual names of splits to each other."""

import collections
import difflib
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from contextcaps.data.problems import DataError
from contextcaps.plain_files import NotPlain, parse_json, read_text

__all__ = ["Vocabulary", "canonical_split", "choose_split", "folded", "read_classes"]

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

    Args:
        given: the classes in their order; None collects them.
        where: where the given classes come from, for messages.
        unify: names that differ only in case or white space are one class, under its most frequent spelling, or under
            that of the given list. False keeps them apart.
    """

    def __init__(self, given: Sequence[str] | None, where: str = "the given classes", unify: bool = True) -> None:
        self.given = given is not None
        self.where = where
        self._unify = unify
        self._indices = {name: index for index, name in enumerate(given or ())}
        self._uses = collections.Counter[str]()
        """Spelling → how often it was met; of a given list, only the other spellings."""
        by_fold: dict[str, list[str]] = {}
        for name in self._indices:
            by_fold.setdefault(folded(name), []).append(name)
        self._listed = {fold: names[0] for fold, names in by_fold.items() if len(names) == 1}
        """Folded name → name in the given list, where that is clear."""

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
        return [label if isinstance(label, int) else self._index(str(label)) for label in labels]

    def _index(self, label: str) -> int:
        index = self._indices.get(label)
        if self.given:
            if index is None:
                self._uses[label] += 1
                index = self._indices[self._listed[folded(label)]]
            return index
        self._uses[label] += 1
        return self._indices.setdefault(label, len(self._indices))

    def _check(self, label: object) -> None:
        if (
            isinstance(label, bool)
            or not isinstance(label, str | int)
            or (isinstance(label, str) and not label.strip())
        ):
            raise DataError(f"label {label!r}: expected the name of a class, or its index")
        if isinstance(label, int) and not self.given:
            raise DataError(f"label {label} is an index, which needs a list of classes (option classes=FILE)")
        if isinstance(label, int) and not 0 <= label < len(self):
            raise DataError(f"label {label}: expected an index from 0 to {len(self) - 1} into {self.where}")
        if isinstance(label, str) and self.given and label not in self._indices:
            listed = self._listed.get(folded(label))
            if listed is None or not self._unify:
                near = [listed] if listed else difflib.get_close_matches(label, self._indices, n=1, cutoff=0.8)
                hint = f"; the nearest is {near[0]!r}" if near else ""
                raise DataError(f"label {label!r} is not among the {len(self)} classes of {self.where}{hint}")

    def final(self) -> tuple[tuple[str, ...], np.ndarray]:
        """Return the classes in their final order, and [J] int64: the final index of each index returned by `add`."""
        names = list(self._indices)
        if self.given:
            return tuple(names), np.arange(len(names))
        spelled = {name: self._spelling(group) for group in self._groups() for name in group}
        classes = tuple(sorted(set(spelled.values())))
        position = {name: index for index, name in enumerate(classes)}
        return classes, np.array([position[spelled[name]] for name in names], dtype=np.int64)

    def assumptions(self) -> list[str]:
        """Return a sentence on the names that were taken as one class; none if there are no such names."""
        if self.given:
            others: dict[str, list[str]] = {}
            for name in self._uses:
                others.setdefault(self._listed[folded(name)], []).append(name)
        else:
            groups = [(self._spelling(group), group) for group in self._groups() if len(group) > 1]
            others = {name: [other for other in group if other != name] for name, group in groups}
        if not others:
            return []
        shown = [f"{name!r} (also {', '.join(map(repr, names))})" for name, names in list(others.items())[:5]]
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        written = "1 class is" if len(others) == 1 else f"{len(others)} classes are"
        return [
            f"{written} written in several ways, taken as one: {', '.join(shown)}{more}; unify=false keeps them apart"
        ]

    def _groups(self) -> list[list[str]]:
        """Return the names met, those of one class together."""
        groups: dict[str, list[str]] = {}
        for name in self._indices:
            groups.setdefault(folded(name) if self._unify else name, []).append(name)
        return list(groups.values())

    def _spelling(self, group: list[str]) -> str:
        """Return the most frequent of several spellings, the first of equals, without white space around it."""
        if not self._unify:
            return group[0]
        uses = collections.Counter[str]()
        for name in group:
            uses[" ".join(name.split())] += self._uses[name]
        return uses.most_common(1)[0][0]


def folded(name: str) -> str:
    """Return a name without what people write differently: case, white space, the encoding of accents.

    >>> folded(" Dining  TABLE") == folded("dining table")
    True
    """
    return " ".join(unicodedata.normalize("NFC", name).split()).casefold()


def read_classes(path: Path, folder: Path | None = None) -> tuple[str, ...]:
    """Read class names from a file, in order: a JSON list of strings (.json), or one name per line (any other).

    Args:
        path: of the file.
        folder: what links may not lead out of, for a list that was found and not named.
    """
    try:
        text = read_text(path, folder, "utf-8-sig")
    except NotPlain as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"{path}: the list of classes cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected a list of classes as UTF-8 text, byte {error.start} is not") from None
    if path.suffix.lower() == ".json":
        try:
            names = parse_json(text)
        except ValueError as error:
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

"""List the 150 classes of the ADE20K scene parsing benchmark, and map the full releases' classes to them.

They are the rows of classes.tsv: names are those of objectInfo150.txt, the full releases' indices those of
mapFromADE.txt, both of https://github.com/CSAILVision/sceneparsing.

A name of the full releases stands for a class only as its whole list of synonyms, in any order: "machine" alone is a
synonym of car in the benchmark, but in the releases a class of its own. The benchmark's authors merged or renamed five
classes of the releases; those are `RENAMED`.
"""

import importlib.resources
import re
from collections.abc import Sequence

__all__ = ["BENCHMARK_CLASSES", "RELEASE_INDICES", "NameMap", "split_names"]

RENAMED = {
    "door": "door",
    "double door": "door",
    "closet": "wardrobe",
    "booth": "booth",
    "screen, crt screen": "crt screen",
}
"""Release's name → the benchmark's first name, where the lists of synonyms differ."""


def split_names(text: str) -> tuple[str, ...]:
    """Return the synonyms in "door, double door" or "door;double door", in their order."""
    return tuple(name for part in re.split("[,;]", text) if (name := " ".join(part.split())))


class NameMap:
    """Finds the class that a release's name stands for.

    Args:
        classes: each class's synonyms.
    """

    def __init__(self, classes: Sequence[Sequence[str]]) -> None:
        self._index = {_key(names): index for index, names in enumerate(classes)}
        first = {names[0].lower(): index for index, names in enumerate(classes)}
        for name, target in RENAMED.items():
            if target in first:
                self._index.setdefault(_key(split_names(name)), first[target])

    def get(self, name: str) -> int | None:
        """Return the class's index, or None if the name is not among the classes."""
        return self._index.get(_key(split_names(name)))


def _key(names: Sequence[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


_TABLE = importlib.resources.files("contextcaps.data.sources.ade20k") / "classes.tsv"
_ROWS = [line.split("\t") for line in _TABLE.read_text(encoding="utf-8").splitlines()[1:]]

BENCHMARK_CLASSES: tuple[tuple[str, ...], ...] = tuple(split_names(names) for _, names in _ROWS)
"""Synonyms of each of the 150 classes, in the benchmark's order; the first is the class's name."""

RELEASE_INDICES: dict[int, int] = {
    int(index): row for row, (indices, _) in enumerate(_ROWS) for index in indices.split()
}
"""Class index in the full releases' _seg.png → index into `BENCHMARK_CLASSES`."""

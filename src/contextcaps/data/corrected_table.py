"""Write a table of a source's images with some labels corrected. The source itself is never changed."""

import csv
import dataclasses
import io
import os
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from contextcaps.atomic import replace_atomically
from contextcaps.data.problems import DataError, require_utf8
from contextcaps.data.source import Source
from contextcaps.data.source_registry import open_source
from contextcaps.data.sources.table import TableSource
from contextcaps.data.unknown import UNKNOWN
from contextcaps.data.vocabulary import folded

__all__ = ["Correction", "corrected_targets", "write_corrected"]

_CELLS = {0: "0", 1: "1", UNKNOWN: "?"}
_IN_NO_SPLIT = "other"


@dataclasses.dataclass(frozen=True)
class Correction:
    """A label that becomes another."""

    image: str
    """The sample's id."""
    name: str
    """The class."""
    is_present: bool
    """What the label becomes."""
    where: str
    """Where it was asked for, such as a row, for messages."""


def corrected_targets(source: Source, corrections: Iterable[Correction]) -> np.ndarray:
    """Return a source's targets [n, J], uint8, with the corrections.

    Raises:
        DataError: there is no such image or class, or the label is what it should become.
    """
    targets = source.targets()  # [n, J]
    rows = {source.id_of(index): index for index in range(len(source))}
    columns = {name: place for place, name in enumerate(source.classes)}
    for each in corrections:
        row, column = rows.get(each.image), columns.get(each.name)
        if row is None or column is None:
            what = f"image {each.image!r}" if row is None else f"class {each.name!r}"
            raise DataError(
                f"{each.where}: {source.name} has no {what}; expected the data, and the split, of the audit"
            )
        if targets[row, column] != (not each.is_present):
            words = {0: "absent", 1: "present"}
            is_now = words.get(int(targets[row, column]), "unknown")
            raise DataError(
                f"{each.where}: {each.name!r} is {is_now} in {each.image!r} of {source.name} and cannot become "
                f"{words[int(each.is_present)]}; expected data that are as they were in the audit"
            )
        targets[row, column] = int(each.is_present)
    return targets


def write_corrected(spec: str, corrections: Sequence[Correction], path: Path, **options: Any) -> str:
    """Write a table of a source's images with a column of 0, 1 and ? for each class; return its name as a source.

    Paths are relative to the table's folder where all images lie below it, and otherwise to the folder that all of them
    share, which the name has as `root`. Where all splits of a source are open, there is a column with them.

    Args:
        spec: the source; its images have to be files.
        corrections: labels that become others.
        path: of the table. A crash leaves the old file or none.
        options: as in `open_source`.

    Raises:
        DataError: the images are no files, a correction does not fit, or no table can hold these names.
    """
    source = open_source(spec, **options)
    images = _files(source)
    targets = corrected_targets(source, corrections)  # [n, J]
    splits = _splits(source, spec, options)
    base = os.path.abspath(path.parent)
    how: dict[str, Any] = {}
    if not all(image.is_relative_to(base) for image in images):
        base = how["root"] = os.path.commonpath([image.parent for image in images])
    if not (targets == 1).any(axis=1).all():
        how["unlabelled"] = "keep"
    if len({folded(name) for name in source.classes}) < len(source.classes):
        how["unify"] = False
    content = io.StringIO(newline="")
    table = csv.writer(content, lineterminator="\n")
    table.writerow(["path", *source.classes, *(["split"] if splits else [])])
    for index, (image, row) in enumerate(zip(images, targets.tolist(), strict=True)):
        name = image.relative_to(base).as_posix()
        require_utf8(source.name, name)
        table.writerow([name, *(_CELLS[value] for value in row), *([splits[index]] if splits else [])])
    with replace_atomically(path) as temporary:
        temporary.write_text(content.getvalue(), encoding="utf-8", newline="")
        _require_same(source, temporary, how, images, targets)
    texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in how.items()}
    query = urllib.parse.urlencode(texts, safe="/", quote_via=urllib.parse.quote)
    return f"table:{path}{query and f'?{query}'}"


def _files(source: Source) -> list[Path]:
    """Return the paths of a source's images."""
    found = []
    for index in range(len(source)):
        image = source.sample(index).image
        if not isinstance(image, Path):
            raise DataError(
                f"{source.name}: its images are no files of their own, so that no table can name them; correct the "
                "labels where these data were made"
            )
        found.append(Path(os.path.abspath(image)))
    return found


def _splits(source: Source, spec: str, options: Mapping[str, Any]) -> list[str]:
    """Return the split of each sample, the first that has it; empty where one split, or a source without any, is open.

    Raises:
        DataError: splits have other classes than the whole.
    """
    if source.split is not None or not source.splits:
        return []
    of: dict[str, str] = {}
    for name in source.splits:
        part = open_source(spec, **{**options, "split": name})
        for index in range(len(part)):
            of.setdefault(part.id_of(index), name)
    rest = _IN_NO_SPLIT
    while rest in source.splits:
        rest += "_"
    return [of.get(source.id_of(index), rest) for index in range(len(source))]


def _require_same(
    source: Source, table: Path, how: Mapping[str, Any], images: Sequence[Path], targets: np.ndarray
) -> None:
    """Read a table again; raise where it does not say the same, as with a class that is called as another column."""
    why = ""
    try:
        found = TableSource(str(table), **how)
        same = found.classes == source.classes and np.array_equal(found.targets(), targets)
        if same and _files(found) == list(images):
            return
    except DataError as error:
        why = f" ({str(error).splitlines()[-1].strip()})"
    raise DataError(
        f"{source.name}: a table of these images and classes would be read otherwise{why}; rename classes that are "
        "called as usual columns are, such as labels or split, and files whose names begin or end with white space"
    )

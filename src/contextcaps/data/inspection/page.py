"""What was found in a source, as one HTML file with everything in it."""

from pathlib import Path
from typing import Any

import numpy as np

from contextcaps.atomic import write_atomically
from contextcaps.data.images import decode
from contextcaps.data.inspection.charts import (
    HEAT_MAP_CLASSES,
    class_frequencies,
    heat_map,
    heat_map_legend,
    label_histogram,
)
from contextcaps.data.inspection.statistics import Inspection, evenly_spread
from contextcaps.data.inspection.tables import pairs_table, problems_table, sizes_table
from contextcaps.data.problems import DataError
from contextcaps.data.sample import Sample
from contextcaps.data.source import Source
from contextcaps.documents.page import render, thumbnail_address

__all__ = ["write_page"]

_SIZES_SHOWN = 8
_PAIRS_SHOWN = 11
_PROBLEMS_SHOWN = 200
_THUMBNAIL_SIDE = 288
"""Longer side of a thumbnail in pixels: it is shown at about 180, and screens have up to twice that."""
_BOX_COLOURS = 8
"""Colours b0 to b7 of the style sheet."""


def write_page(source: Source, inspection: Inspection, path: Path | str, thumbnails: int = 24) -> None:
    """Write the page; a crash leaves the old file or none.

    Args:
        source: where the pictures of the contact sheet come from.
        inspection: of this source.
        path: of the HTML file; its folder must be there.
        thumbnails: images on the contact sheet, evenly spread over the source; those that cannot be read are left out.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise DataError(f"{path}: its folder is not there; make {path.parent} first")
    content = _page(source, inspection, thumbnails)
    try:
        write_atomically(path, content)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from None


def _page(source: Source, inspection: Inspection, thumbnails: int) -> str:
    used = int((inspection.class_counts > 0).sum())
    wanted = evenly_spread(len(source), min(thumbnails, len(source)))
    pictures = [picture for index in wanted if (picture := _picture(source, index)) is not None]
    return render(
        "inspection.html.j2",
        title=inspection.name,
        inspection=inspection,
        labels=inspection.label_statistics(),
        used=used,
        histogram=label_histogram(inspection),
        sizes=sizes_table(inspection, _SIZES_SHOWN),
        size_range=inspection.size_range() if len(inspection.common_sizes()) > 1 else "",
        frequencies=class_frequencies(inspection),
        tail=_tail(inspection),
        classes=[
            (inspection.classes[index], int(inspection.class_counts[index])) for index in inspection.by_frequency()
        ],
        heat_map=heat_map(inspection) if inspection.count and used > 1 else None,
        heat_map_classes=HEAT_MAP_CLASSES,
        heat_map_legend=heat_map_legend(),
        close=pairs_table("", inspection, inspection.co_occurrences[:_PAIRS_SHOWN]),
        apart=pairs_table("", inspection, inspection.exclusions[:_PAIRS_SHOWN]),
        pictures=pictures,
        unreadable=len(wanted) - len(pictures),
        problems=problems_table(inspection, _PROBLEMS_SHOWN),
    )


def _tail(inspection: Inspection) -> str:
    """Return how long the tail of rare classes is, in a sentence."""
    counts = np.sort(inspection.class_counts)[::-1]
    top = max(1, round(len(counts) / 10))
    share = 100 * counts[:top].sum() / max(counts.sum(), 1)
    rare, none = int((counts < 10).sum()), int((counts == 0).sum())
    few = f"{rare} of {len(counts)} classes have fewer than 10 images" if rare else "Every class has at least 10 images"
    absent = f", {none} of them none" if none else ""
    return f"{few}{absent}; the commonest {top} {'carries' if top == 1 else 'carry'} {share:.0f} % of all labels."


def _picture(source: Source, index: int) -> dict[str, Any] | None:
    """Return what the contact sheet shows of a sample; None where it cannot be read."""
    try:
        sample = source.sample(index)
        pixels = decode(sample.image)
    except DataError:
        return None
    height, width = pixels.shape[:2]
    colours = {label: position % _BOX_COLOURS for position, label in enumerate(sample.labels)}
    return {
        "name": sample.id,
        "width": width,
        "height": height,
        "address": thumbnail_address(pixels, _THUMBNAIL_SIDE),
        "labels": [(source.classes[label], colour) for label, colour in colours.items()],
        "boxes": _boxes(sample, colours, source.classes),
    }


def _boxes(sample: Sample, colours: dict[int, int], classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the boxes in fractions of the picture."""
    if sample.boxes is None:
        return []
    return [
        {"x": left, "y": top, "width": right - left, "height": bottom - top, "name": classes[int(label)]}
        | {"colour": colours.get(int(label), 0)}
        for label, (left, top, right, bottom) in zip(sample.boxes.labels, sample.boxes.corners.tolist(), strict=True)
    ]

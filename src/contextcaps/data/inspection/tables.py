"""What was found in a source, as tables for the terminal and for the page."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from contextcaps.data.inspection.statistics import Inspection, Pair
from contextcaps.documents import Cell, Column, Table, count, counted, number, percent

__all__ = ["inspection_tables", "pairs_table", "problems_table", "sizes_table"]

_ROWS_SHOWN = 8
_PROBLEMS_SHOWN = 10


def inspection_tables(inspection: Inspection) -> list[Table]:
    """Return what was found, for a terminal of 80 columns or more."""
    tables = [_overview(inspection), _classes_table(inspection)]
    least = inspection.least_support
    if inspection.co_occurrences:
        title = f"Strongest co-occurrences (pairs with {least} images or more)"
        tables.append(pairs_table(title, inspection, inspection.co_occurrences[:_ROWS_SHOWN]))
    if inspection.exclusions:
        title = f"Strongest exclusions (pairs with {least} images or more by chance)"
        tables.append(pairs_table(title, inspection, inspection.exclusions[:_ROWS_SHOWN]))
    if inspection.problems or inspection.doubts or inspection.notes:
        tables.append(problems_table(inspection, _PROBLEMS_SHOWN, notes=True))
    return tables


def pairs_table(title: str, inspection: Inspection, pairs: Sequence[Pair]) -> Table:
    """Return pairs of classes, how often they meet, and how often they would by chance."""
    columns = (
        Column("class", align="left", most=22),
        Column("and class", align="left", most=22),
        Column("images", count),
        Column("by chance", lambda value: number(value, 1)),
        Column("lift", lambda value: number(value, 2)),
    )
    names = inspection.classes
    rows = [
        (names[pair.first], names[pair.second], pair.count, pair.expected, Cell(pair.lift, "strong")) for pair in pairs
    ]
    return Table(title, columns, rows)


def problems_table(inspection: Inspection, most: int, notes: bool = False) -> Table:
    """Return the first problems and, on request, all warnings and notes."""
    columns = (Column("where", align="left", wrap=True), Column("what", align="left", wrap=True))
    rows: list[Any] = [(problem.where, problem.what) for problem in inspection.problems[:most]]
    if len(inspection.problems) > most:
        rows.append(("…", f"and {len(inspection.problems) - most:,} more"))
    if notes:
        rows += [("warning", doubt) for doubt in inspection.doubts] + [("note", note) for note in inspection.notes]
    return Table("Problems and notes", columns, rows)


def sizes_table(inspection: Inspection, most: int) -> Table:
    """Return the commonest sizes and their shares."""
    columns = (
        Column("width × height (pixels)"),
        Column("images", count),
        Column("share", lambda share: f"{percent(share)} %", bar=True),
    )
    sizes, total = inspection.common_sizes(), len(inspection.sizes)
    rows = [(f"{width} × {height}", images, images / total) for height, width, images in sizes[:most]]
    more = (f"… and {len(sizes) - most:,} more sizes.",) if len(sizes) > most else ()
    return Table("Image sizes", columns, rows, more, empty="No image was opened, or none could be read.")


def _overview(inspection: Inspection) -> Table:
    """Return counts, labels per image, image sizes."""
    labels = inspection.label_statistics()
    part = f" (split {inspection.split})" if inspection.split else ""
    used = int((inspection.class_counts > 0).sum())
    positive = f", {used:,} with a positive" if used < len(inspection.classes) else ""
    rows: list[Any] = [("images", f"{inspection.count:,}{part}")]
    if inspection.splits:
        rows.append(("given splits", ", ".join(inspection.splits)))
    spread = f"{labels['least']:.0f} to {labels['most']:.0f}, median {labels['median']:g}, mean {labels['mean']:.2f}"
    rows += [
        ("classes", f"{len(inspection.classes):,}{positive}"),
        ("labels per image", spread),
        ("", _sparkline(inspection.labels_per_image)),
    ]
    if inspection.unknown_counts.any():
        rows.append(("unknown labels", _unknown_in_words(inspection)))
    if inspection.images_read:
        known = [
            f"{kind} for {found:,} of {inspection.images_read:,}"
            for kind, found in (("boxes", inspection.with_boxes), ("masks", inspection.with_masks))
            if found
        ]
        looked = "decoded to the end" if inspection.images_decoded else "headers only"
        rows += [
            ("image sizes", _sizes_in_words(inspection)),
            ("places known", "; ".join(known) or "no boxes, no masks"),
            ("images opened", f"{inspection.images_read:,} of {inspection.count:,}, {looked}"),
        ]
    found = len(inspection.problems)
    looked = "" if inspection.images_decoded else " (headers only)" if inspection.images_read else " (no image opened)"
    rows.append(("problems", Cell(f"{found:,}", "bad") if found else f"none found{looked}"))
    return Table(inspection.name, (Column("", align="left"), Column("", align="left", wrap=True)), rows)


def _sparkline(histogram: Sequence[int] | np.ndarray) -> str:
    """Return a histogram from 0 labels on as one line of blocks, as in "0 ▁▇█▃▁ 4"."""
    blocks = "▁▂▃▄▅▆▇█"
    shown = list(histogram[:40])
    highest = max(*shown, 1)
    line = "".join(" " if not each else blocks[math.ceil(8 * int(each) / highest) - 1] for each in shown)
    return f"0 {line} {len(shown) - 1}" + (" …" if len(histogram) > len(shown) else "")


def _unknown_in_words(inspection: Inspection) -> str:
    """Return how many labels are unknown, and the classes that have most of them."""
    counts, pairs = inspection.unknown_counts, inspection.count * len(inspection.classes)
    most = np.argsort(-counts, kind="stable")[:3]
    named = ", ".join(f"{inspection.classes[each]} ({counts[each]:,})" for each in most if counts[each])
    total, classes = int(counts.sum()), int((counts > 0).sum())
    return f"{total:,} of {pairs:,} ({percent(total / pairs)} %), in {counted(classes, 'class')}; most in {named}"


def _sizes_in_words(inspection: Inspection) -> str:
    """Return the sizes, commonest first, or their range where there are many."""
    sizes = inspection.common_sizes()
    if not sizes:
        return "none could be read"
    shown = [f"{width}×{height}" + (f" ({images:,})" if len(sizes) > 1 else "") for height, width, images in sizes[:3]]
    if len(sizes) <= 3:
        return ", ".join(shown) + " pixels (width×height)"
    return f"{len(sizes):,} sizes: {inspection.size_range()}; commonest {', '.join(shown)}"


def _classes_table(inspection: Inspection) -> Table:
    """Return commonest and rarest classes side by side; all of them where there are few."""
    order = inspection.by_frequency()
    shown = min(_ROWS_SHOWN, math.ceil(len(order) / 2))
    everything = len(order) <= 2 * shown
    # Few classes: the second half goes on where the first ends. Many: the rarest, from the end.
    others = order[shown:] if everything else order[::-1][:shown]
    columns = [
        column
        for heading in (("class", "class") if everything else ("commonest", "rarest"))
        for column in (Column(heading, align="left", most=24), Column("images", count), Column("%", percent))
    ]
    rows, shares = [], inspection.shares()
    for pair in itertools.zip_longest(order[:shown], others):
        cells: list[Any] = []
        for each in pair:
            images = None if each is None else int(inspection.class_counts[each])
            cells += [""] * 3 if images is None else [inspection.classes[each], images, shares[each]]
        rows.append(tuple(cells))
    title = f"All {counted(len(order), 'class')}" if everything else f"Commonest and rarest of {len(order):,} classes"
    return Table(title, tuple(columns), rows)

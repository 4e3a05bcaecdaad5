"""What was found in a source, as tables for the terminal."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from contextcaps.data.inspection.statistics import Inspection, Pair, printable

__all__ = ["inspection_tables"]

_ROWS_SHOWN = 8
_PROBLEMS_SHOWN = 10


def inspection_tables(inspection: Inspection) -> list[Table]:
    """What was found, as tables for a terminal of 80 columns or more."""
    tables = [_overview(inspection), _classes_table(inspection)]
    least = inspection.least_support
    if inspection.co_occurrences:
        title = f"Strongest co-occurrences (pairs with {least} images or more)"
        tables.append(_pairs_table(title, inspection.co_occurrences, inspection.classes))
    if inspection.exclusions:
        title = f"Strongest exclusions (pairs with {least} images or more by chance)"
        tables.append(_pairs_table(title, inspection.exclusions, inspection.classes))
    if inspection.problems or inspection.notes:
        tables.append(_problems_table(inspection))
    return tables


def _name(text: str) -> Text:
    """A name from data: no markup, no control characters, cut off with … where it is too long."""
    return Text(printable(text), no_wrap=True, overflow="ellipsis")


def _table(title: str, show_header: bool = True) -> Table:
    return Table(title=Text(title, overflow="fold"), title_justify="left", show_header=show_header, min_width=66)


def _overview(inspection: Inspection) -> Table:
    """Counts, labels per image, image sizes."""
    table = _table(printable(inspection.name), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    labels = inspection.label_statistics()
    part = f" (split {printable(inspection.split)})" if inspection.split else ""
    table.add_row("images", Text(f"{inspection.count:,}{part}"))
    if inspection.splits:
        table.add_row("given splits", Text(printable(", ".join(inspection.splits))))
    used = int((inspection.class_counts > 0).sum())
    table.add_row(
        "classes", f"{len(inspection.classes):,}" + (f", {used:,} with a positive" * (used < len(inspection.classes)))
    )
    table.add_row(
        "labels per image",
        f"{labels['least']:.0f} to {labels['most']:.0f}, median {labels['median']:g}, mean {labels['mean']:.2f}",
    )
    table.add_row("", _sparkline(inspection.labels_per_image))
    if inspection.images_read:
        table.add_row("image sizes", _sizes_in_words(inspection))
        known = [
            f"{kind} for {number:,} of {inspection.images_read:,}"
            for kind, number in (("boxes", inspection.with_boxes), ("masks", inspection.with_masks))
            if number
        ]
        table.add_row("places known", "; ".join(known) or "no boxes, no masks")
        table.add_row(
            "images opened",
            f"{inspection.images_read:,} of {inspection.count:,}, "
            + ("decoded to the end" if inspection.images_decoded else "headers only"),
        )
    found = len(inspection.problems)
    looked = "" if inspection.images_decoded else " (headers only)" if inspection.images_read else " (no image opened)"
    table.add_row("problems", f"[red]{found:,}[/red]" if found else f"none found{looked}")
    return table


def _sparkline(histogram: Sequence[int] | np.ndarray) -> str:
    """A histogram from 0 labels on as one line of blocks, as in "0 ▁▇█▃▁ 4"."""
    blocks = "▁▂▃▄▅▆▇█"
    shown = list(histogram[:40])
    highest = max(*shown, 1)
    line = "".join(" " if not each else blocks[math.ceil(8 * int(each) / highest) - 1] for each in shown)
    return f"0 {line} {len(shown) - 1}" + (" …" if len(histogram) > len(shown) else "")


def _sizes_in_words(inspection: Inspection) -> str:
    """Sizes, commonest first, or their range where there are many."""
    sizes = inspection.common_sizes()
    if not sizes:
        return "none could be read"
    shown = [f"{width}×{height}" + (f" ({images:,})" if len(sizes) > 1 else "") for height, width, images in sizes[:3]]
    if len(sizes) <= 3:
        return ", ".join(shown) + " pixels (width×height)"
    (low_height, low_width), (high_height, high_width) = inspection.sizes.min(axis=0), inspection.sizes.max(axis=0)
    middle = np.median(inspection.sizes, axis=0)
    return (
        f"{len(sizes):,} sizes: width {low_width} to {high_width}, median {middle[1]:g}; height {low_height} to "
        f"{high_height}, median {middle[0]:g} pixels; commonest {', '.join(shown)}"
    )


def _classes_table(inspection: Inspection) -> Table:
    """Commonest and rarest classes side by side; all of them where there are few."""
    order = inspection.by_frequency()
    rows = min(_ROWS_SHOWN, math.ceil(len(order) / 2))
    everything = len(order) <= 2 * rows
    commonest = order[:rows]
    # Few classes: the second half goes on where the first ends. Many: the rarest, from the end.
    others = order[rows:] if everything else order[::-1][:rows]
    table = _table(f"All {len(order)} classes" if everything else f"Commonest and rarest of {len(order)} classes")
    for heading in ("class" if everything else "commonest", "class" if everything else "rarest"):
        table.add_column(heading, no_wrap=True, max_width=24)
        table.add_column("images", justify="right", no_wrap=True)
    for left, right in itertools.zip_longest(commonest, others):
        cells: list[Text | str] = []
        for each in (left, right):
            cells += ["", ""] if each is None else [_name(inspection.classes[each]), _share(inspection, int(each))]
        table.add_row(*cells)
    return table


def _share(inspection: Inspection, index: int) -> str:
    count = int(inspection.class_counts[index])
    return f"{count:,} {100 * count / inspection.count:5.1f} %"


def _pairs_table(title: str, pairs: Sequence[Pair], classes: Sequence[str]) -> Table:
    table = _table(title)
    table.add_column("class", no_wrap=True, max_width=22)
    table.add_column("and class", no_wrap=True, max_width=22)
    table.add_column("images", justify="right", no_wrap=True)
    table.add_column("by chance", justify="right", no_wrap=True)
    table.add_column("lift", justify="right", no_wrap=True)
    for pair in pairs[:_ROWS_SHOWN]:
        table.add_row(
            _name(classes[pair.first]),
            _name(classes[pair.second]),
            f"{pair.count:,}",
            f"{pair.expected:,.1f}",
            f"{pair.lift:.2f}",
        )
    return table


def _problems_table(inspection: Inspection) -> Table:
    table = _table("Problems and notes")
    table.add_column("where", overflow="fold", ratio=1)
    table.add_column("what", overflow="fold", ratio=2)
    for problem in inspection.problems[:_PROBLEMS_SHOWN]:
        table.add_row(Text(printable(problem.where)), Text(printable(problem.what)))
    if len(inspection.problems) > _PROBLEMS_SHOWN:
        table.add_row("…", f"and {len(inspection.problems) - _PROBLEMS_SHOWN:,} more")
    for note in inspection.notes:
        table.add_row("note", Text(printable(note)))
    return table

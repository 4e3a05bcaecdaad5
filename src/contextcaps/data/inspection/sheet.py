"""The contact sheet of `inspection_page`: pictures with their labels, and boxes where they are known, as HTML."""

import base64
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from contextcaps.data.images import decode
from contextcaps.data.inspection.charts import shown
from contextcaps.data.inspection.statistics import evenly_spread
from contextcaps.data.problems import DataError
from contextcaps.data.sample import Boxes, Sample
from contextcaps.data.source import Source

__all__ = ["contact_sheet"]

_THUMBNAIL_SIDE = 288
"""Longer side of a thumbnail in pixels: it is shown at about 180, and screens have up to twice that."""
_BOX_COLOURS = 8
"""Colours b0 to b7 of the page's style sheet."""


def contact_sheet(source: Source, thumbnails: int) -> tuple[str, str]:
    """The pictures, and a line that says which they are."""
    wanted = evenly_spread(len(source), min(thumbnails, len(source)))
    figures, unreadable, with_boxes = [], 0, False
    for index in wanted:
        try:
            sample = source.sample(index)
            pixels = decode(sample.image)
        except DataError:
            unreadable += 1
            continue
        with_boxes = with_boxes or sample.boxes is not None
        figures.append(_figure(sample, pixels, source.classes))
    words = f"{len(figures)} of {len(source):,} images, evenly spread"
    words += ", with the boxes of their objects." if with_boxes else "."
    if unreadable:
        words += f" {unreadable} more could not be read."
    return f'<div class="sheet">{"".join(figures)}</div>', words


def _figure(sample: Sample, pixels: np.ndarray, classes: Sequence[str]) -> str:
    height, width = pixels.shape[:2]
    colour = {label: position % _BOX_COLOURS for position, label in enumerate(sample.labels)}
    boxes = "" if sample.boxes is None else _box_drawing(sample.boxes, colour, classes)
    dot = '<i class="b{}"></i>' if boxes else ""
    chips = "".join(f"<li>{dot.format(colour[label])}{shown(classes[label])}</li>" for label in sample.labels)
    shape = "lying" if width >= height else "standing"
    return (
        f'<figure><div class="frame"><div class="picture {shape}" style="aspect-ratio:{width}/{height}">'
        f'<img alt="{shown(sample.id)}" src="{_thumbnail(pixels)}">{boxes}</div></div>'
        f'<figcaption title="{shown(sample.id)}">{shown(sample.id)}</figcaption><ul>{chips}</ul></figure>'
    )


def _box_drawing(boxes: Boxes, colour: dict[int, int], classes: Sequence[str]) -> str:
    """Boxes as an SVG that lies on the picture, in fractions of it."""
    drawn = "".join(
        f'<rect class="b{colour.get(int(label), 0)}" x="{left:.4f}" y="{top:.4f}" width="{right - left:.4f}" '
        f'height="{bottom - top:.4f}"><title>{shown(classes[int(label)])}</title></rect>'
        for label, (left, top, right, bottom) in zip(boxes.labels, boxes.corners.tolist(), strict=True)
    )
    return f'<svg class="boxes" viewBox="0 0 1 1" preserveAspectRatio="none">{drawn}</svg>'


def _thumbnail(pixels: np.ndarray) -> str:
    """A picture as a data address: JPEG, or PNG where it is small and JPEG would blur it."""
    image = Image.fromarray(pixels)
    small = max(image.size) <= 64
    image.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
    written = io.BytesIO()
    image.save(written, "PNG" if small else "JPEG", **({"optimize": True} if small else {"quality": 82}))
    return f"data:image/{'png' if small else 'jpeg'};base64,{base64.b64encode(written.getvalue()).decode('ascii')}"

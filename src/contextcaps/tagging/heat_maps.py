"""Heat maps: the parts of a class's logit by position, over the photograph, cell by cell as they were computed."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from contextcaps.atomic import write_atomically
from contextcaps.tagging.explanation import Explanation
from contextcaps.tagging.pixels import pixels_of

__all__ = [
    "NEGATIVE",
    "POSITIVE",
    "heat_map_scale",
    "paint_heat_map",
    "photograph_of",
    "shrunk",
    "with_legend",
    "write_heat_maps",
]

POSITIVE, NEGATIVE = (194, 65, 12), (29, 95, 209)
"""Colours, RGB, of what raises a logit and of what lowers it."""
_MOST = 0.8
"""Opacity of the strongest cell; the photograph can be seen through it."""
_PALE = 50
"""Grey of the photograph's black, on which both colours are told apart."""
_LEAST_WIDTH = 320
"""Least width of a picture with a legend, in pixels; its words need so much."""
_INK = (31, 41, 55)


def heat_map_scale(explanation: Explanation) -> float:
    """Return the largest part of a cell among all classes, with which all heat maps are painted."""
    return max((float(np.abs(each.heat_map()).max()) for each in explanation.classes), default=0.0)


def photograph_of(image: Any) -> np.ndarray:
    """Return an image's pixels [H, W, 3], uint8, at its own size; `image` is as for `Tagger.explain`."""
    return np.ascontiguousarray(pixels_of(image, None).transpose(1, 2, 0))


def shrunk(pixels: np.ndarray, side: int) -> np.ndarray:
    """Return a photograph [H, W, 3] whose longer side has so many pixels at most."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    return np.asarray(image)


def paint_heat_map(cells: np.ndarray, pixels: np.ndarray, scale: float) -> np.ndarray:
    """Return a photograph in grey with its cells in colour, [H, W, 3], uint8.

    Args:
        cells: [h, w], parts of a logit. Nothing is smoothed between them.
        pixels: [H, W, 3], uint8; the network saw it squashed, so that the cells divide its height and width evenly.
        scale: the part at which the colour is strongest.
    """
    strength = np.abs(cells) / scale if scale > 0 else np.zeros_like(cells)  # [h, w]
    opacity = Image.fromarray((255 * _MOST * np.minimum(strength, 1)).round().astype(np.uint8))
    colours = Image.fromarray(np.where((cells > 0)[..., None], POSITIVE, NEGATIVE).astype(np.uint8))
    size = (pixels.shape[1], pixels.shape[0])
    ground = (
        Image.fromarray(pixels).convert("L").point([round(_PALE + (1 - _PALE / 255) * each) for each in range(256)])
    )
    painted = Image.composite(_enlarged(colours, size), ground.convert("RGB"), _enlarged(opacity, size))
    draw = ImageDraw.Draw(painted, "RGBA")
    width = max(1, min(size) // 400)
    for row in range(1, cells.shape[0]):
        y = round(row * size[1] / cells.shape[0])
        draw.line([(0, y), (size[0], y)], fill=(255, 255, 255, 70), width=width)
    for column in range(1, cells.shape[1]):
        x = round(column * size[0] / cells.shape[1])
        draw.line([(x, 0), (x, size[1])], fill=(255, 255, 255, 70), width=width)
    return np.asarray(painted)


def with_legend(painted: np.ndarray, scale: float) -> np.ndarray:
    """Return a painted photograph [H, W, 3] with the colours and what they stand for below it."""
    height, width = painted.shape[:2]
    unit = max(12, min(height, width) // 40)  # size of the letters
    canvas = Image.new("RGB", (max(width, _LEAST_WIDTH), height + 4 * unit), "white")
    canvas.paste(Image.fromarray(painted))
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(unit)
    left, right, top = unit, max(width, _LEAST_WIDTH) - unit, height + unit // 2
    for x in range(left, right):
        value = 2 * (x - left) / max(1, right - left - 1) - 1  # from −1 to 1
        colour, share = (POSITIVE if value > 0 else NEGATIVE), _MOST * abs(value)
        shade = tuple(round(share * each + (1 - share) * 160) for each in colour)  # over a middle grey
        draw.line([(x, top), (x, top + unit)], fill=shade)
    digits = 2 if scale < 1 else 1
    # The font has no true minus.
    below = top + round(1.2 * unit)
    draw.text((left, below), f"-{scale:.{digits}f} lowers the score", _INK, font, "la")
    draw.text(((left + right) / 2, below), "0", _INK, font, "ma")
    draw.text((right, below), f"raises the score +{scale:.{digits}f}", _INK, font, "ra")
    return np.asarray(canvas)


def write_heat_maps(explanation: Explanation, image: Any, folder: Path) -> list[Path]:
    """Write a heat map of each class as PNG at the photograph's own size, all with one scale; return the files."""
    from contextcaps.documents.page import png_of

    pixels, scale, files = photograph_of(image), heat_map_scale(explanation), []
    for place, each in enumerate(explanation.classes, 1):
        painted = with_legend(paint_heat_map(each.heat_map(), pixels, scale), scale)
        files.append(folder / f"{place:02d}-{_as_file_name(each.name)}.png")
        write_atomically(files[-1], png_of(painted))
    return files


def _enlarged(cells: Image.Image, size: tuple[int, int]) -> Image.Image:
    return cells.resize(size, Image.Resampling.NEAREST)


def _as_file_name(name: str) -> str:
    """Return a class's name with nothing in it that a file system could take for more than a name.

    >>> _as_file_name("traffic light"), _as_file_name("../etc")
    ('traffic-light', 'etc')
    """
    return re.sub(r"\W+", "-", name).strip("-")[:60] or "class"

"""Read masks from image files, and check their sizes against the photo's."""

from pathlib import Path

import numpy as np
from PIL import Image

from contextcaps.data.decoding_limits import MAX_BYTES
from contextcaps.data.file_source import BadSample
from contextcaps.data.images import BadImage, image_size
from contextcaps.data.problems import DataError
from contextcaps.plain_files import require_plain

__all__ = ["check_sizes", "count_values", "photo_size", "read_mask"]

_UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)
"""Errors that Pillow raises for damaged files."""
_FORMATS = ("PNG",)  # no other format that Pillow would recognise under that name


def photo_size(path: Path) -> tuple[int, int]:
    """Return the width and height in pixels of a photo as it is shown, from its header."""
    try:
        height, width = image_size(path)
    except BadImage as error:
        raise BadSample(f"{path.name} cannot be read as an image ({error})") from None
    return width, height


def check_sizes(mask: Path, size: tuple[int, int], modes: tuple[str, ...]) -> None:
    """Raise `BadSample` unless a mask's header has the photo's width and height, and one of these Pillow modes."""
    try:
        require_plain(mask, most=MAX_BYTES)
        with Image.open(mask, formats=_FORMATS) as opened:
            _check(opened, mask.name, size, modes)
    except _UNREADABLE as error:
        raise BadSample(f"mask {mask.name} cannot be read ({error})") from None


def count_values(mask: Path, size: tuple[int, int]) -> np.ndarray:
    """Count the pixels [256] of each value of an 8-bit mask; raise `BadSample` if it is damaged or of another size."""
    try:
        with Image.open(mask, formats=_FORMATS) as opened:
            _check(opened, mask.name, size, ("L", "P"))
            return np.asarray(opened.histogram())  # twice as fast as numpy.bincount, which first makes 64-bit integers
    except _UNREADABLE as error:
        raise BadSample(f"mask {mask.name} cannot be read ({error})") from None


def read_mask(mask: Path) -> np.ndarray:
    """Read a mask's pixels [H, W] or [H, W, 3], uint8."""
    try:
        with Image.open(mask, formats=_FORMATS) as opened:
            return np.asarray(opened)
    except _UNREADABLE as error:
        raise DataError(f"{mask}: the mask cannot be read ({error}); mend or remove the file") from None


def _check(opened: Image.Image, name: str, size: tuple[int, int], modes: tuple[str, ...]) -> None:
    # Before any pixel is decoded, so that a mask cannot be a decompression bomb where its photo is none.
    if opened.size != size:
        raise BadSample(f"mask {name} is {opened.size[0]}×{opened.size[1]} px, its image {size[0]}×{size[1]} px")
    if opened.mode not in modes:
        raise BadSample(f"mask {name}: expected an image of mode {' or '.join(modes)}, got {opened.mode}")

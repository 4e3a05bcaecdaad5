"""Decode image files to pixels and resize them; nothing else does.

There are two ways, which agree. The fast one (the default) lets libjpeg decode at a half, quarter or eighth of the
size where that leaves at least twice the target's height and width (`Image.draft`); the plain one decodes at full size.
Both resize with Pillow's antialiased triangle filter, so that a model scores the same images with torch and without.
They give the same pixels without JPEG's scaling (other formats, or targets above half the image's size); with it, a
photograph's pixels differ by at most `MEAN_TOLERANCE` levels on average and `MAX_TOLERANCE` at worst: JPEG's own filter
is a little sharper.

The result is always [H, W, 3] bytes in RGB, upright:
- EXIF's orientation is applied (all eight).
- Transparent pixels are laid on white, whether from an alpha channel, a palette or a transparent colour.
- Grey, 1-bit and palette images become RGB; CMYK is converted without a colour profile, JPEG's inverted (Adobe) kind
  included; 16 bits are scaled to 8, not clipped.
- An animation gives its first frame.
- HEIC, as telephones write it, is read with the extra `heic`.
- A truncated or damaged file is refused, never filled with grey; so is one of more than `MAX_PIXELS`, by its header
  alone, and a JPEG of too many scans (`contextcaps.data.decoding_limits`). Pillow's global settings are left as they
  are. All functions may be called from several threads, which together hold no more than `MAX_PIXELS`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image
from PIL.ImageFile import ImageFile

from contextcaps.data.decoding_limits import MAX_BYTES, MAX_PIXELS
from contextcaps.data.decoding_process import DecodedElsewhere, can_be_elsewhere, elsewhere
from contextcaps.data.image_opening import (
    BadImage,
    Header,
    as_bad_image,
    checked_file,
    held,
    is_rgb,
    is_slow_file,
    open_image,
    require_decodable,
    rgb,
)

__all__ = [
    "MAX_PIXELS",
    "MAX_TOLERANCE",
    "MEAN_TOLERANCE",
    "BadImage",
    "checked_size",
    "decode",
    "decode_opened",
    "image_size",
    "resize_mask",
]

MEAN_TOLERANCE = 3.0
"""Bound on a photograph's mean difference between the fast and the plain way, of 255 levels, after JPEG scaling."""
MAX_TOLERANCE = 40
"""Bound on a photograph's largest difference between the fast and the plain way, of 255 levels, after JPEG scaling."""


def decode(
    image: bytes | Path | np.ndarray, size: tuple[int, int] | int | None = None, fast: bool = True
) -> np.ndarray:
    """Return the pixels of an image, [H, W, 3], uint8, RGB, upright.

    Args:
        image: an encoded file's bytes, its path, or pixels [H, W, 3] as bytes (which are only resized).
        size: (height, width), or one number for both; the image is squashed to it, its aspect ratio is not kept.
            None: as it is.
        fast: scaled JPEG decoding; False: all of its pixels are decoded.

    Raises:
        BadImage: the image cannot be read; the message says why.
    """
    height_width = None if size is None else checked_size(size)
    if isinstance(image, np.ndarray):
        return _resize(_checked_pixels(image), height_width)
    with _opened(image, height_width if fast else None) as (opened, header), held(header):
        across = height_width[::-1] if height_width is not None and header.orientation >= 5 else height_width
        pixels = _pixels_of(opened, across) if isinstance(opened, Image.Image) else _resize(opened.pixels(), across)
        return np.ascontiguousarray(_turn(pixels, header.orientation))


def decode_opened(opened: Image.Image, size: tuple[int, int] | int | None = None) -> np.ndarray:
    """Return what `decode` does, from an image that Pillow has open; it may be decoded already, and stays as it is.

    Raises:
        BadImage: it cannot be read, or is larger than what is decoded.
    """
    height_width = None if size is None else checked_size(size)
    with as_bad_image():
        header = Header.of(opened)
        require_decodable(header)
        if isinstance(opened, ImageFile) and opened.tile and opened.fp is not None and opened.tell() == 0:
            place, is_slow = opened.fp.tell(), header.is_slow or is_slow_file(opened.fp, decodes=True)
            content = _all_of(opened.fp) if is_slow and can_be_elsewhere() else None
            opened.fp.seek(place)
            if content is not None:  # not decoded yet
                return decode(content, height_width)
        with held(header):
            across = height_width[::-1] if height_width is not None and header.orientation >= 5 else height_width
            return np.ascontiguousarray(_turn(_pixels_of(opened, across), header.orientation))


def _all_of(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(MAX_BYTES + 1)  # one more is refused


@contextmanager
def _opened(
    image: bytes | Path, size: tuple[int, int] | None = None, decodes: bool = True
) -> Iterator[tuple[Image.Image | DecodedElsewhere, Header]]:
    """Open a file, by another process where it may take long; turn any error inside into a `BadImage`."""
    with as_bad_image(), checked_file(image) as file:
        may_go = can_be_elsewhere()
        if not (may_go and is_slow_file(file, decodes)):
            with open_image(file) as opened:
                header = Header.of(opened, size)
                if decodes:
                    require_decodable(header)
                if not (may_go and decodes and header.is_slow):
                    yield opened, header
                    return
        with elsewhere(image, size) as opened_elsewhere:
            if decodes:
                require_decodable(opened_elsewhere.header)
            yield opened_elsewhere, opened_elsewhere.header


def image_size(image: bytes | Path | np.ndarray) -> tuple[int, int]:
    """Return the (height, width) that `decode` would give, from the file's header alone."""
    if isinstance(image, np.ndarray):
        height, width, _ = _checked_pixels(image).shape
        return height, width
    with _opened(image, decodes=False) as (_, header):
        return header.upright


def resize_mask(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize a mask [H, W] to (height, width) by nearest neighbour, so that values are never mixed."""
    rows = (np.arange(size[0]) * 2 + 1) * mask.shape[0] // (2 * size[0])
    columns = (np.arange(size[1]) * 2 + 1) * mask.shape[1] // (2 * size[1])
    return mask[rows[:, None], columns[None, :]]


def checked_size(size: tuple[int, int] | int) -> tuple[int, int]:
    """Return (height, width) for a size given so, or as one number for both; raise ValueError for others."""
    sides = (size, size) if isinstance(size, int) else size
    whole = isinstance(sides, tuple | list) and all(isinstance(s, int | np.integer) and s >= 1 for s in sides)
    if not whole or len(sides) != 2 or isinstance(size, bool):
        raise ValueError(f"size: expected (height, width) of at least 1 pixel, or one number for both, got {size!r}")
    return int(sides[0]), int(sides[1])


def _checked_pixels(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise BadImage(f"expected pixels [H, W, 3] of uint8, got {list(pixels.shape)} of {pixels.dtype}")
    return pixels


def _turn(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turn pixels [H, W, 3] as stored upright."""
    if orientation >= 5:  # 5: mirrored at the diagonal; 6, 7, 8: that and the flips of 2, 3, 4
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels


def _pixels_of(opened: Image.Image, size: tuple[int, int] | None) -> np.ndarray:
    """Return an open image's pixels as stored, [H, W, 3], resized to (height, width)."""
    opened.load()
    if size is None or not is_rgb(opened):
        return _resize(rgb(opened), size)
    return _resized(opened, size)  # as Pillow holds them: an array in between would be two copies, and as much time


def _resize(pixels: np.ndarray, size: tuple[int, int] | None) -> np.ndarray:
    """Resize pixels [H, W, 3] to (height, width)."""
    return pixels if size is None or pixels.shape[:2] == size else _resized(Image.fromarray(pixels), size)


def _resized(image: Image.Image, size: tuple[int, int]) -> np.ndarray:
    """Resize an image of mode RGB with an antialiased triangle filter; nothing, if it has the size."""
    return np.array(image.resize((size[1], size[0]), Image.Resampling.BILINEAR))

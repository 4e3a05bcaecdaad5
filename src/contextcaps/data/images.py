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

import functools
import io
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from contextcaps.data.decoding_limits import MAX_PIXELS, MAX_SCANNED, decoding_budget, scans
from contextcaps.data.problems import DataError
from contextcaps.extras import import_extra
from contextcaps.out_of_memory import is_out_of_memory

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

_STRIP = 2**22  # pixels that are converted to RGB at once

_WANTED_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
# Pillow knows many more, some of which start other programs (EPS runs Ghostscript): not for files from anywhere.

_SIGNATURES = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
)
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"hevm", b"hevs")


class BadImage(DataError):
    """Says why an image cannot be used, without naming the file."""


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
    with _opened(image) as opened:
        orientation = _orientation(opened)
        if height_width is not None and orientation >= 5:  # stored lying down: resize it so, then turn
            height_width = (height_width[1], height_width[0])
        full = opened.width * opened.height
        if fast and height_width is not None:
            opened.draft(None, (2 * height_width[1], 2 * height_width[0]))
        with _held(opened, full):
            return np.ascontiguousarray(_turn(_resize(_rgb(opened), height_width), orientation))


def decode_opened(opened: Image.Image, size: tuple[int, int] | int | None = None) -> np.ndarray:
    """Return what `decode` does, from an image that Pillow has open; it may be decoded already, and stays as it is.

    Raises:
        BadImage: it cannot be read, or is larger than what is decoded.
    """
    height_width = None if size is None else checked_size(size)
    with _bad_image(), _held(opened, opened.width * opened.height):
        pixels = np.ascontiguousarray(_turn(_rgb(opened), _orientation(opened)))
        return _resize(pixels, height_width)


def _held(opened: Image.Image, full: int) -> AbstractContextManager[None]:
    """Refuse an image that would take too long or too much memory, by its header; hold its pixels in a block.

    Args:
        opened: not decoded yet, and perhaps to be decoded at a smaller size than its own.
        full: its height × width.
    """
    if full > MAX_PIXELS:
        raise BadImage(_too_large(f"{full:,} pixels"))
    count = scans(opened)
    if full * count > MAX_SCANNED:
        raise BadImage(
            f"{count:,} scans of {full:,} pixels: a JPEG is decoded up to {MAX_SCANNED:,} (a decompression bomb?); "
            "save it again without progressive scans"
        )
    # JPEG is decoded at the size asked for; one of several scans is kept whole until the last of them.
    return decoding_budget().held(opened.width * opened.height if count == 1 else full)


def image_size(image: bytes | Path | np.ndarray) -> tuple[int, int]:
    """Return the (height, width) that `decode` would give, from the file's header alone."""
    if isinstance(image, np.ndarray):
        height, width, _ = _checked_pixels(image).shape
        return height, width
    with _opened(image) as opened:
        (width, height), orientation = opened.size, _orientation(opened)
        if isinstance(opened, TiffImageFile):  # as stored: Pillow 12 has turned its size already, Pillow 10 not
            width, height = opened.tag_v2[256], opened.tag_v2[257]
            orientation = opened.tag_v2.get(ExifTags.Base.Orientation, 1)
        return (width, height) if orientation in (5, 6, 7, 8) else (height, width)


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


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()  # registers the formats beyond Pillow's first five
    return tuple(name for name in _WANTED_FORMATS if name in Image.OPEN)


@contextmanager
def _opened(image: bytes | Path) -> Iterator[Image.Image]:
    """Open a file with Pillow and check its size by its header; turn any error inside into a `BadImage`."""
    with _bad_image():
        if isinstance(image, Path) and not image.is_file():
            raise BadImage("the path is not a file" if image.exists() else "there is no such file")
        with image.open("rb") if isinstance(image, Path) else io.BytesIO(image) as file:
            head = file.read(64)
            file.seek(0)
            if not head:
                raise BadImage("empty file (0 bytes)")
            with _open_heif(file) if _is_heif(head) else _open_with_pillow(file, head) as opened:
                width, height = opened.size
                if width * height > MAX_PIXELS:
                    raise BadImage(_too_large(f"{width} × {height} pixels"))
                yield opened


@contextmanager
def _bad_image() -> Iterator[None]:
    """Turn any error of an image into a `BadImage`."""
    try:
        yield
    except BadImage:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:  # a warning where they are errors
        raise BadImage(_too_large(str(error).split(", could be")[0])) from None
    except PermissionError:
        raise BadImage("the file may not be read (permission denied)") from None
    except Exception as error:  # at damaged files Pillow's decoders raise nearly every kind of error
        if is_out_of_memory(error):  # for one image: the others may well fit
            raise BadImage("there is not enough memory to decode it") from None
        if isinstance(error, OSError) and error.filename is not None:  # of the file itself, such as too long a name
            raise BadImage(f"the file cannot be read ({error.strerror})") from None
        reason = str(error) or type(error).__name__
        raise BadImage(f"damaged or truncated image: {reason}") from error


def _open_with_pillow(file: BinaryIO, head: bytes) -> Image.Image:
    try:
        return Image.open(file, formats=_formats())
    except UnidentifiedImageError:
        raise BadImage(_unidentified(head)) from None


def _is_heif(head: bytes) -> bool:
    """Return whether a file that begins so is HEIC: its first brand says so, or a general one with HEIC's beside it."""
    if head[4:8] != b"ftyp":
        return False
    brands = [head[start : start + 4] for start in (8, *range(16, min(len(head), int.from_bytes(head[:4], "big")), 4))]
    return brands[0] in _HEIF_BRANDS or (brands[0] in (b"mif1", b"msf1") and any(b in _HEIF_BRANDS for b in brands))


def _open_heif(file: BinaryIO) -> Image.Image:
    """Open a HEIC file with libheif, which turns it upright; Pillow's list of formats stays as it is."""
    try:
        heif = import_extra("pi_heif", "heic", "HEIC images")
    except ImportError as error:
        raise BadImage(f"{error}; or convert it to JPEG") from None
    opened: Image.Image = heif.HeifImageFile(file)
    return opened


def _too_large(found: str) -> str:
    return f"{found}: more than {MAX_PIXELS:,} pixels are not decoded (a decompression bomb?)"


def _unidentified(head: bytes) -> str:
    """Return why a file that begins with these bytes was not opened."""
    name = next((name for signature, name in _SIGNATURES if head.startswith(signature)), None)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        name = "WEBP"
    if name is not None:
        return f"damaged or truncated image: it begins as {name}, but its header cannot be read"
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head):
        return f"not an image but text: it begins {head[:20].decode('ascii')!r}"
    return f"not an image of a format that is read ({', '.join(_formats())})"


def _orientation(opened: Image.Image) -> int:
    """Return EXIF's orientation, 1 (upright) to 8, from the header; 1 if there is none or it makes no sense."""
    if isinstance(opened, TiffImageFile):
        return 1  # Pillow turns these itself when it decodes them
    try:
        # The base class's method: PNG's own would decode the whole image to look for EXIF behind it.
        orientation = Image.Image.getexif(opened).get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged metadata are no reason to refuse the pixels
        return 1
    return orientation if orientation in range(1, 9) else 1


def _turn(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turn pixels [H, W, 3] as stored upright."""
    if orientation >= 5:  # 5: mirrored at the diagonal; 6, 7, 8: that and the flips of 2, 3, 4
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels


def _rgb(opened: Image.Image) -> np.ndarray:
    """Return the first frame's pixels as stored, [H, W, 3], uint8."""
    has_sixteen_bits = opened.mode.startswith("I;16") or (opened.mode == "I" and opened.format in ("PNG", "PPM"))
    opened.load()  # before the size is looked at: Pillow turns TIFF here
    width, height = opened.size
    rows = max(1, _STRIP // width)
    if rows >= height:
        return _rgb_of(opened, has_sixteen_bits)
    pixels = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, rows):  # each takes several copies, which would be several of the whole
        strip = opened.crop((0, top, width, min(top + rows, height)))
        pixels[top : top + rows] = _rgb_of(strip, has_sixteen_bits)
    return pixels


def _rgb_of(opened: Image.Image, has_sixteen_bits: bool) -> np.ndarray:
    if has_sixteen_bits:
        grey = np.asarray(opened).astype(np.uint32)  # 0 to 65535
        return np.repeat((((grey + 128) // 257).astype(np.uint8))[:, :, None], 3, axis=2)
    if opened.mode in ("I", "F"):
        raise BadImage(f"pixels of 32 bits (mode {opened.mode}): their range is not known; convert it to 8 or 16 bits")
    if opened.mode == "RGB" and "transparency" not in opened.info:
        return np.array(opened)  # a copy: torch wants memory it may write to
    if opened.has_transparency_data:
        coloured = opened.convert("RGBA")
        ground = Image.new("RGBA", coloured.size, "white")
        return np.array(Image.alpha_composite(ground, coloured).convert("RGB"))
    return np.array(opened.convert("RGB"))


def _resize(pixels: np.ndarray, size: tuple[int, int] | None) -> np.ndarray:
    """Resize pixels [H, W, 3] to (height, width) with an antialiased triangle filter."""
    if size is None or pixels.shape[:2] == size:
        return pixels
    return np.array(Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BILINEAR))

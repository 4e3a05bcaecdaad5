"""Open image files with Pillow and read their pixels as they are stored; nothing else does. No torch is loaded.

Nobody knows beforehand how long some files take. What such a file is told by is here, too; another process opens it,
which can be killed: `contextcaps.data.decoding_process`.
"""

import dataclasses
import functools
import io
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from contextcaps.data.decoding_limits import (
    MAX_BYTES,
    MAX_PIXELS,
    MAX_SCANNED,
    decoding_budget,
    has_few_segments,
    scans,
)
from contextcaps.data.problems import DataError
from contextcaps.extras import import_extra
from contextcaps.out_of_memory import is_out_of_memory

__all__ = [
    "BadImage",
    "Header",
    "as_bad_image",
    "checked_file",
    "held",
    "is_rgb",
    "is_slow_file",
    "open_image",
    "orientation_of",
    "require_decodable",
    "rgb",
    "strips",
]

_STRIP = 2**22  # pixels that are converted to RGB at once

_PLAIN_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM")
"""Those whose time goes with their bytes and pixels alone. A TIFF's strips may all be the same bytes; JPEG 2000, AVIF
and HEIC have layers, frames and tiles that no header counts."""
_PLAIN_BYTES = 2**22
_PLAIN_PIXELS = 2**24
_PLAIN_SCANNED = 2**28
"""Largest that this process opens itself: what is larger takes a second or more in any case."""

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


@dataclasses.dataclass(frozen=True)
class Header:
    """What is known of an image before it is decoded."""

    height: int
    width: int
    """Both are of what will be decoded: a JPEG may be decoded at a half, quarter or eighth of its size."""
    full: int
    """The image's own height × width."""
    scans: int
    """How many scans a JPEG has; 1 for any other image."""
    orientation: int
    """EXIF's, 1 (upright) to 8, of the pixels as stored."""
    upright: tuple[int, int]
    """(height, width) of the image when it stands upright."""

    @classmethod
    def of(cls, opened: Image.Image, size: tuple[int, int] | None = None) -> "Header":
        """Read it from an image that is open; a JPEG is then decoded no larger than a size upright needs."""
        orientation, (width, height) = orientation_of(opened), opened.size
        stored_width, stored_height, turned = width, height, orientation
        if isinstance(opened, TiffImageFile):  # as stored: Pillow 12 has turned its size already, Pillow 10 not
            stored_width, stored_height = opened.tag_v2[256], opened.tag_v2[257]
            turned = opened.tag_v2.get(ExifTags.Base.Orientation, 1)
        lying = turned in (5, 6, 7, 8)
        upright = (stored_width, stored_height) if lying else (stored_height, stored_width)
        if size is not None:
            across = size[::-1] if orientation >= 5 else size  # stored lying down
            opened.draft(None, (2 * across[1], 2 * across[0]))
        return cls(opened.height, opened.width, width * height, scans(opened), orientation, upright)

    @property
    def is_slow(self) -> bool:
        """Whether the pixels are so many that it takes long to decode them."""
        if self.scans > 1:
            return self.full * self.scans > _PLAIN_SCANNED
        return self.height * self.width > _PLAIN_PIXELS


def require_decodable(header: Header) -> None:
    """Refuse an image that would take too long or too much memory, by its header."""
    if header.full > MAX_PIXELS:
        raise BadImage(_too_large(f"{header.full:,} pixels"))
    if header.full * header.scans > MAX_SCANNED:
        raise BadImage(
            f"{header.scans:,} scans of {header.full:,} pixels: a JPEG is decoded up to {MAX_SCANNED:,} (a "
            "decompression bomb?); save it again without progressive scans"
        )


def held(header: Header) -> AbstractContextManager[None]:
    """Hold an image's pixels in a block: memory for decoding them is then this thread's."""
    # JPEG is decoded at the size asked for; one of several scans is kept whole until the last of them.
    return decoding_budget().held(header.height * header.width if header.scans == 1 else header.full)


@contextmanager
def checked_file(image: bytes | Path) -> Iterator[BinaryIO]:
    """Open an image's bytes; refuse what is no file, or too long for an image."""
    if isinstance(image, Path) and not image.is_file():
        raise BadImage("the path is not a file" if image.exists() else "there is no such file")
    with image.open("rb") if isinstance(image, Path) else io.BytesIO(image) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if not size:
            raise BadImage("empty file (0 bytes)")
        if size > MAX_BYTES:
            raise BadImage(f"{size:,} bytes: files of more than {MAX_BYTES:,} are not decoded")
        yield file


def is_slow_file(file: IO[bytes], decodes: bool) -> bool:
    """Return whether it may take long to open a file, or to decode it."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(64)
    file.seek(0)
    if head.startswith(b"\xff\xd8"):
        return not has_few_segments(file)
    return size > _PLAIN_BYTES or (decodes and (_is_heif(head) or head[4:8] in (b"ftyp", b"jP  ") or _is_other(head)))


def _is_other(head: bytes) -> bool:
    """Return whether a file that begins so is TIFF, or JPEG 2000 without its container."""
    return head.startswith((b"II", b"MM", b"\xff\x4f\xff\x51"))


@contextmanager
def open_image(file: BinaryIO) -> Iterator[Image.Image]:
    """Open a file with Pillow and check its size by its header."""
    head = file.read(64)
    file.seek(0)
    with _open_heif(file) if _is_heif(head) else _open_with_pillow(file, head) as opened:
        width, height = opened.size
        if width * height > MAX_PIXELS:
            raise BadImage(_too_large(f"{width} × {height} pixels"))
        yield opened


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()  # registers the formats beyond Pillow's first five
    return tuple(name for name in _WANTED_FORMATS if name in Image.OPEN)


@contextmanager
def as_bad_image() -> Iterator[None]:
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


def orientation_of(opened: Image.Image) -> int:
    """Return EXIF's orientation, 1 (upright) to 8, from the header; 1 if there is none or it makes no sense."""
    if isinstance(opened, TiffImageFile):
        return 1  # Pillow turns these itself when it decodes them
    try:
        # The base class's method: PNG's own would decode the whole image to look for EXIF behind it.
        orientation = Image.Image.getexif(opened).get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged metadata are no reason to refuse the pixels
        return 1
    return orientation if orientation in range(1, 9) else 1


def strips(opened: Image.Image) -> Iterator[np.ndarray]:
    """Yield the first frame's pixels as stored, [H, W, 3], uint8, some rows at a time.

    Converting them takes several copies, which would be several of the whole.
    """
    has_sixteen_bits = opened.mode.startswith("I;16") or (opened.mode == "I" and opened.format in ("PNG", "PPM"))
    opened.load()  # before the size is looked at: Pillow turns TIFF here
    width, height = opened.size
    rows = max(1, _STRIP // width)
    for top in range(0, height, rows):
        strip = opened if rows >= height else opened.crop((0, top, width, min(top + rows, height)))
        yield _rgb_of(strip, has_sixteen_bits)


def rgb(opened: Image.Image) -> np.ndarray:
    """Return the first frame's pixels as stored, [H, W, 3], uint8."""
    parts = strips(opened)
    first = next(parts)
    width, height = opened.size
    if len(first) == height:
        return first
    pixels, top = np.empty((height, width, 3), np.uint8), len(first)
    pixels[:top] = first
    for part in parts:
        pixels[top : top + len(part)] = part
        top += len(part)
    return pixels


def is_rgb(opened: Image.Image) -> bool:
    """Return whether an image's pixels, once they are loaded, are RGB as they are."""
    return opened.mode == "RGB" and "transparency" not in opened.info


def _rgb_of(opened: Image.Image, has_sixteen_bits: bool) -> np.ndarray:
    if has_sixteen_bits:
        grey = np.asarray(opened).astype(np.uint32)  # 0 to 65535
        return np.repeat((((grey + 128) // 257).astype(np.uint8))[:, :, None], 3, axis=2)
    if opened.mode in ("I", "F"):
        raise BadImage(f"pixels of 32 bits (mode {opened.mode}): their range is not known; convert it to 8 or 16 bits")
    if is_rgb(opened):
        return np.array(opened)  # a copy: torch wants memory it may write to
    if opened.has_transparency_data:
        coloured = opened.convert("RGBA")
        ground = Image.new("RGBA", coloured.size, "white")
        return np.array(Image.alpha_composite(ground, coloured).convert("RGB"))
    return np.array(opened.convert("RGB"))

"""Define what is in a tar shard, as `shards` reads it and `convert` writes it.

A sample is adjacent members with the same stem:
- the image, `.jpg`, `.jpeg`, `.png` or `.webp`;
- `.json`: {"id": str, "labels": [class name or index, ...], "unknown": [class name or index, ...], "boxes": [[class,
  cx, cy, w, h], ...]}, where id (else it is the stem), unknown (classes of which it is not known whether the image
  shows them) and boxes are optional, and box numbers are fractions of the image's width and height;
- optionally `.mask.png`, one channel of 8 or 16 bits, as high and wide as the image: class index + 1 at each pixel, 0
  for none of the classes.
`classes.json` beside the shards is the ordered list of class names.
"""

import io
import json
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from contextcaps.data.image_opening import as_bad_image, checked_file
from contextcaps.data.images import decode, image_size
from contextcaps.data.problems import DataError
from contextcaps.data.sample import Corners, Sample

__all__ = [
    "BOX_DECIMALS",
    "CLASSES_FILE",
    "IMAGE_SUFFIXES",
    "JSON_SUFFIX",
    "MASK_SUFFIX",
    "decode_boxes",
    "decode_mask",
    "encode_annotation",
    "encode_image",
    "encode_mask",
    "member_stem",
    "suffix_of",
]

CLASSES_FILE = "classes.json"
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
MASK_SUFFIX = ".mask.png"
JSON_SUFFIX = ".json"
BOX_DECIMALS = 6
"""Decimals of box numbers in what `convert` writes, so that corners come back to within 1e-6."""


def suffix_of(name: str) -> str | None:
    """Return the suffix of a member that belongs to a sample, in lower case; None of one that does not."""
    if name.rpartition("/")[2].startswith("._"):  # macOS puts such companions beside files
        return None
    lowered = name.lower()
    for suffix in (MASK_SUFFIX, JSON_SUFFIX, *IMAGE_SUFFIXES):  # .mask.png before .png
        if lowered.endswith(suffix) and len(name) > len(suffix):
            return suffix
    return None


def member_stem(identifier: str) -> str:
    """Return a sample's id as a member's stem: percent-escaped, so that `urllib.parse.unquote` gives it back.

    It has no dots, because the webdataset package takes what follows the first one for the suffix, and no slashes, so
    that no id leads to another folder.
    """
    return urllib.parse.quote(identifier, safe=" ", errors="surrogatepass").replace(".", "%2E")


def encode_image(image: bytes | Path | np.ndarray) -> tuple[str, bytes]:
    """Return suffix and bytes of an image without loss: JPEG, PNG and WebP as they are, all else as PNG."""
    if not isinstance(image, np.ndarray):
        with as_bad_image(), checked_file(image) as file:
            content = file.read()
        suffix = _suffix_by_content(content)
        if suffix is not None:
            image_size(content)  # refuses what only begins like an image
            return suffix, content
        image = decode(content)
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="PNG")
    return ".png", file.getvalue()


def _suffix_by_content(content: bytes) -> str | None:
    if content.startswith(b"\xff\xd8\xff"):
        return ".jpg"
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return ".png"
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return ".webp"
    return None


def encode_annotation(sample: Sample, classes: Sequence[str]) -> bytes:
    """Write a sample's .json."""
    content: dict[str, object] = {"id": sample.id, "labels": [classes[label] for label in sample.labels]}
    if sample.unknown:
        content["unknown"] = [classes[label] for label in sample.unknown]
    if sample.boxes is not None:
        content["boxes"] = [
            [classes[label], *(round(number, BOX_DECIMALS) for number in _centre(corners))]
            for label, corners in zip(sample.boxes.labels.tolist(), sample.boxes.corners.tolist(), strict=True)
        ]
    return json.dumps(content, separators=(",", ":")).encode("ascii")


def _centre(corners: Sequence[float]) -> tuple[float, float, float, float]:
    """Convert left, top, right, bottom to cx, cy, w, h, clipped at the image's edge."""
    left, top, right, bottom = (min(max(number, 0.0), 1.0) for number in corners)
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def decode_boxes(boxes: object) -> tuple[list[object], list[Corners]]:
    """Return classes and corners of a .json's boxes; rounded ones are clipped at the image's edge."""
    if boxes is None:
        return [], []
    if not isinstance(boxes, list):
        raise DataError(f"the .json: expected a list of boxes, got {type(boxes).__name__}")
    names: list[object] = []
    corners: list[Corners] = []
    for box in boxes:
        if not isinstance(box, list) or len(box) != 5:
            raise DataError(f"box {box!r}: expected [class, cx, cy, w, h]")
        name, *numbers = box
        if not all(type(number) in (int, float) and 0 <= number <= 1 for number in numbers):
            raise DataError(f"box {box!r}: expected cx, cy, w, h as fractions of the image's width and height")
        x, y, width, height = numbers
        names.append(name)
        corners.append((max(x - width / 2, 0), max(y - height / 2, 0), min(x + width / 2, 1), min(y + height / 2, 1)))
    return names, corners


def encode_mask(mask: np.ndarray) -> bytes:
    """Encode a mask [H, W] as PNG, with 8 bits where they are enough, otherwise 16."""
    highest = int(mask.max(initial=0))
    if mask.ndim != 2 or int(mask.min(initial=0)) < 0 or highest > 65535:
        raise DataError(f"mask: expected [H, W] with values from 0 to 65535, got {list(mask.shape)} up to {highest}")
    file = io.BytesIO()
    Image.fromarray(mask.astype(np.uint8 if highest < 256 else np.uint16)).save(file, format="PNG")
    return file.getvalue()


def decode_mask(content: bytes, size: tuple[int, int], classes: int) -> np.ndarray:
    """Decode a PNG to a mask [H, W], int32; `size` is its image's height and width."""
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as file:
            found = (file.height, file.width)
            if found != size:  # before decoding, so that no mask is larger than an image may be
                raise DataError(f"the mask has height and width {found}, its image {size}")
            mask = np.array(file)
    except DataError:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"the mask is damaged or cut off: {error}") from None
    if mask.ndim != 2 or mask.dtype == bool:
        raise DataError("the mask: expected one channel of 8 or 16 bits")
    if mask.max() > classes:
        raise DataError(f"the mask: expected values from 0 to {classes} (class index + 1), got {mask.max()}")
    return mask.astype(np.int32)

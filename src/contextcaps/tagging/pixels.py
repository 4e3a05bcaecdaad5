"""Convert whatever a caller has as an image to the pixels that a network takes.

A mistake of the program that calls (a type that is no image, pixels of another layout) raises `TypeError` or
`ValueError`; what is wrong with an image itself (a damaged file) raises `BadImage`, which becomes that image's result.
"""

import io
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from PIL import Image

from contextcaps.data.images import BadImage, decode, decode_opened
from contextcaps.tagging.inputs import NotAnImage

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["as_images", "name_of", "pixels_of"]

_EXPECTED = (
    "a path, bytes, an open file, a PIL image, an array [H, W, 3] of uint8 or a tensor [3, H, W], or several of them"
)

_reading = threading.Lock()  # open files and Pillow images are read when they are first used, which is not thread-safe


def _renew() -> None:
    global _reading
    _reading = threading.Lock()  # the thread that held it is not in a forked process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def as_images(images: Any) -> Any:
    """Return an iterable of images, also for a single one.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(images, np.ndarray) and images.dtype.kind in "OUS":  # an array of paths, as a data frame's column
        return images.ravel().tolist()
    if isinstance(images, np.ndarray) or _is_tensor(images):
        return images if images.ndim == 4 else [images]
    if isinstance(images, str | bytes | bytearray | os.PathLike | Image.Image | NotAnImage) or _is_file(images):
        return [images]
    if isinstance(images, dict) or not hasattr(images, "__iter__"):
        raise TypeError(f"images: expected {_EXPECTED}, got {type(images).__name__}")
    return images


def name_of(image: Any, index: int) -> str | int:
    """Return an image's name in the results: its path, or its index."""
    if isinstance(image, NotAnImage):
        return image.name
    return os.fsdecode(image) if isinstance(image, str | os.PathLike) else index


def pixels_of(image: Any, size: tuple[int, int] | None) -> np.ndarray:
    """Return an image's pixels [3, H, W], uint8, RGB, squashed to `size` = (height, width); None leaves them as large.

    Raises:
        BadImage: it cannot be read.
        TypeError: it is no image, or its pixels are of a type that is not taken.
        ValueError: its pixels are in another layout or range.
    """
    if isinstance(image, NotAnImage):
        raise BadImage(image.why)
    if isinstance(image, str | os.PathLike):
        if not os.fspath(image):
            raise BadImage("an empty name")
        path = Path(os.fsdecode(image))
        if os.path.isdir(path):  # False also for what may not be looked into
            raise BadImage("a folder, not an image; contextcaps.tagging.find_images lists the images in it")
        pixels = decode(path, size)
    elif isinstance(image, bytes | bytearray):
        pixels = decode(bytes(image), size)
    elif isinstance(image, np.ndarray):
        pixels = decode(_from_array(image), size)
    elif isinstance(image, Image.Image):
        with _reading:
            pixels = decode_opened(image, size)
    elif _is_tensor(image):
        pixels = decode(_from_tensor(image), size)
    elif _is_file(image):
        pixels = decode(_from_file(image), size)
    else:
        inside = "; a list inside the list is not looked into" if isinstance(image, list | tuple) else ""
        raise TypeError(f"images: expected {_EXPECTED}, got {type(image).__name__} among them{inside}")
    return pixels.transpose(2, 0, 1)  # [3, H, W]


def _is_tensor(image: Any) -> "TypeGuard[Tensor]":
    """Return whether an object is a tensor, without importing torch: who has one has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(image, torch.Tensor)


def _is_file(image: Any) -> bool:
    """Return whether an object can be read from, as files are; Pillow's images cannot."""
    return callable(getattr(image, "read", None))


def _from_file(file: Any) -> bytes:
    """Return all that an open file holds, from its beginning where it can go back there."""
    if isinstance(file, io.TextIOBase):
        raise TypeError("images: expected a file opened for bytes, open(path, 'rb'), got one opened for text")
    try:
        with _reading:
            if getattr(file, "seekable", lambda: False)():
                file.seek(0)  # whoever has just written an image into it stands at its end
            content = file.read()
    except OSError as error:
        raise BadImage(f"the file cannot be read ({error.strerror or error})") from error
    if not isinstance(content, bytes | bytearray):
        raise TypeError(f"images: expected a file that gives bytes, got {type(content).__name__} from {file!r}")
    return bytes(content)


def _from_array(image: np.ndarray) -> np.ndarray:
    """Check an array's type and shape, [H, W, 3] of uint8."""
    shape = list(image.shape)
    got = f"images: expected an array [H, W, 3] of uint8, got {shape} of {image.dtype}"
    if image.dtype != np.uint8:
        hint = "; for values from 0 to 1: (255 * image).round().astype('uint8')" if image.dtype.kind == "f" else ""
        raise TypeError(got + hint)
    if len(shape) != 3 or shape[2] != 3 or 0 in shape:
        raise ValueError(got + _array_hint(shape))
    return image


def _array_hint(shape: list[int]) -> str:
    if 0 in shape:
        return ""
    if len(shape) == 2 or (len(shape) == 3 and shape[2] == 1):
        return "; for grey: PIL.Image.fromarray takes [H, W] of uint8"
    if len(shape) == 3 and shape[0] == 3:
        return "; channels come last: image.transpose(1, 2, 0)"
    if len(shape) == 3 and shape[2] == 4:
        return "; without transparency: image[..., :3]"
    return ""


def _from_tensor(image: "Tensor") -> np.ndarray:
    """Return pixels [H, W, 3], uint8, of a tensor [3, H, W] or [1, H, W]; values 0…1 are rounded to bytes."""
    got = f"got {list(image.shape)} of {image.dtype}"
    if image.ndim != 3 or image.shape[0] not in (1, 3) or image.numel() == 0:
        last = image.ndim == 3 and image.shape[2] == 3
        hint = "; channels come first: image.permute(2, 0, 1)" if last else ""
        raise ValueError(f"images: expected a tensor [3, H, W], or [1, H, W] for grey, {got}{hint}")
    image = image.detach().cpu()
    if image.is_floating_point():
        least, most = (float(value) for value in image.float().aminmax())
        if not 0 <= least <= most <= 1:  # false for NaN, too
            raise ValueError(
                "images: expected values from 0 to 1, not normalised (the network does that), "
                f"got {least:g} to {most:g}"
            )
        image = (image.float() * 255).round().byte()
    if str(image.dtype) != "torch.uint8":
        raise TypeError(f"images: expected a tensor of uint8 (0…255) or floats (0…1), {got}")
    return image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()  # [H, W, 3]

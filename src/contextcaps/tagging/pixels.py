"""Convert whatever a caller has as an image to the pixels that a network takes."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from contextcaps.data.images import BadImage, decode, upright_pixels
from contextcaps.tagging.inputs import NotAnImage

__all__ = ["as_images", "name_of", "pixels_of"]

_EXPECTED = "a path, bytes, a PIL image, an array [H, W, 3] of uint8 or a tensor [3, H, W], or several of them"

_pillow = threading.Lock()  # an open Pillow image reads its file when it is first used, which is not thread-safe


def as_images(images: Any) -> Any:
    """Return an iterable of images, also for a single one."""
    if isinstance(images, np.ndarray | Tensor):
        return images if images.ndim == 4 else [images]
    if isinstance(images, str | bytes | bytearray | os.PathLike | Image.Image | NotAnImage):
        return [images]
    if isinstance(images, dict) or not hasattr(images, "__iter__"):
        raise ValueError(f"images: expected {_EXPECTED}, got {type(images).__name__}")
    return images


def name_of(image: Any, index: int) -> str | int:
    """Return an image's name in the results: its path, or its index."""
    if isinstance(image, NotAnImage):
        return image.name
    return os.fsdecode(image) if isinstance(image, str | os.PathLike) else index


def pixels_of(image: Any, size: tuple[int, int]) -> np.ndarray:
    """Return an image's pixels [3, H, W], uint8, RGB, squashed to `size` = (height, width).

    Raises:
        BadImage: it cannot be read, or its pixels make no sense.
        ValueError: its type cannot be an image.
    """
    if isinstance(image, NotAnImage):
        raise BadImage(image.why)
    if isinstance(image, str | os.PathLike):
        pixels = decode(Path(os.fsdecode(image)), size)
    elif isinstance(image, bytes | bytearray):
        pixels = decode(bytes(image), size)
    elif isinstance(image, np.ndarray):
        pixels = decode(image, size)
    elif isinstance(image, Image.Image):
        pixels = decode(_from_pillow(image), size)
    elif isinstance(image, Tensor):
        pixels = decode(_from_tensor(image), size)
    else:
        raise ValueError(f"images: expected {_EXPECTED}, got {type(image).__name__} among them")
    return pixels.transpose(2, 0, 1)  # [3, H, W]


def _from_pillow(image: Image.Image) -> np.ndarray:
    """Return pixels [H, W, 3], uint8, as from a file: upright, transparent pixels on white."""
    try:
        with _pillow:
            return upright_pixels(image)
    except (BadImage, MemoryError):
        raise
    except Exception as error:  # as for files: Pillow raises nearly every kind of error
        raise BadImage(f"damaged or truncated image: {error or type(error).__name__}") from error


def _from_tensor(image: Tensor) -> np.ndarray:
    """Return pixels [H, W, 3], uint8, of a tensor [3, H, W] or [1, H, W]; values 0…1 are rounded to bytes."""
    if image.ndim != 3 or image.shape[0] not in (1, 3) or image.numel() == 0:
        raise BadImage(f"expected a tensor [3, H, W], or [1, H, W] for grey, got {list(image.shape)}")
    image = image.detach().cpu()
    if image.is_floating_point():
        least, most = (float(value) for value in image.float().aminmax())
        if not 0 <= least <= most <= 1:  # false for NaN, too
            raise BadImage(f"expected values from 0 to 1, not normalised, got {least:g} to {most:g}")
        image = (image.float() * 255).round().to(torch.uint8)
    if image.dtype != torch.uint8:
        raise BadImage(f"expected a tensor of uint8 (0…255) or floats (0…1), got {image.dtype}")
    return image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()  # [H, W, 3]

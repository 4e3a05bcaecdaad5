"""Make JPEG files of the size of photographs, to measure how fast they are tagged."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from contextcaps.data import open_source

__all__ = ["DRAWN", "Drawn", "draw_photographs"]

_DRAWN_AT = 256
"""Side of the scenes in pixels, before they are enlarged."""
_NOISE = 8
"""Most that noise adds to or takes from a value of a pixel, of 255 levels."""
_QUALITY = 90
"""Says how little JPEG leaves out, from 1 to 95."""


class Drawn(NamedTuple):
    """Files to make, all of one size in pixels."""

    width: int
    height: int
    files: int


DRAWN = (Drawn(640, 480, 16), Drawn(4000, 3000, 4))
"""Photographs as they are on the web, and as a telephone takes them."""


def draw_photographs(folder: Path, drawn: Drawn, seed: int = 0) -> list[Path]:
    """Draw scenes, enlarge them, add noise as a sensor does, and write them as JPEG; return the files.

    Decoding takes as long as the file has bits: a drawing without noise would be decoded too fast.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scenes = open_source("scenes", count=drawn.files, size=_DRAWN_AT, seed=seed)
    random = np.random.default_rng(seed)
    files = []
    for index in range(drawn.files):
        scene = Image.fromarray(np.asarray(scenes[index].image))
        pixels = np.asarray(scene.resize((drawn.width, drawn.height), Image.Resampling.BICUBIC), dtype=np.int16)
        noise = random.integers(-_NOISE, _NOISE + 1, pixels.shape, dtype=np.int16)  # [H, W, 3]
        files.append(folder / f"scene-{index:03}.jpg")
        Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8)).save(files[-1], quality=_QUALITY)
    return files

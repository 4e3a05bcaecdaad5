"""Small pictures, tables and tar files that tests write."""

import io
import json
import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def pixels(seed: int, height: int = 12, width: int = 16) -> np.ndarray:
    """Smooth random colours [H, W, 3], uint8."""
    corners = np.random.default_rng(seed).integers(0, 256, (2, 2, 3), dtype=np.uint8)
    return np.array(Image.fromarray(corners).resize((width, height), Image.Resampling.BILINEAR))


def encoded(seed: int, form: str = "JPEG", height: int = 12, width: int = 16) -> bytes:
    """An image file's bytes."""
    file = io.BytesIO()
    Image.fromarray(pixels(seed, height, width)).save(file, format=form)
    return file.getvalue()


def write_images(folder: Path, names: Sequence[str]) -> None:
    """JPEG files, each with its own picture."""
    for seed, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(seed))


def write_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    """A plain tar of files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def shard_members(seeds: Sequence[int], labels: Sequence[Any] = ("cat",)) -> list[tuple[str, bytes]]:
    """Members of samples "0000", "0001" and so on: a JPEG and a .json."""
    members = []
    for seed in seeds:
        annotation = {"id": f"{seed:04d}", "labels": list(labels)}
        members += [(f"{seed:04d}.jpg", encoded(seed)), (f"{seed:04d}.json", json.dumps(annotation).encode())]
    return members


def idx_bytes(array: np.ndarray) -> bytes:
    """An idx file of bytes."""
    return struct.pack(f">{1 + array.ndim}I", 2048 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()

"""Fingerprints of the images that a run has learned from, so that an evaluation on them can say so.

A fingerprint is a hash of 8 bytes of an image's pixels at the network's size, thinned out to about 32×32: a copy of a
file has the same one wherever it lies and whatever it is called.
"""

import dataclasses
import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from contextcaps.atomic import write_atomically
from contextcaps.data.decoding import decode_ahead
from contextcaps.documents import counted
from contextcaps.plain_files import require_plain
from contextcaps.training.config import TrainConfig
from contextcaps.training.data import Part
from contextcaps.training.runs import SEEN_FILE

__all__ = ["Seen", "count_seen", "record_seen"]

_MOST = 1 << 20
"""Images of a part whose fingerprints are kept, 8 MiB; of larger ones so many, evenly spaced."""
_MOST_BYTES = 2**25
"""Bytes of the file, which has those of two parts."""
_MOST_DECODED = 1000
"""The same where there is no prepared copy, and each image has to be decoded for it."""
_CHUNK = 32  # images that a worker decodes at a time


@dataclasses.dataclass(frozen=True)
class Seen:
    """How many images a model has learned from, among those that it is measured on."""

    train: int
    """Images that were in its training part."""
    val: int
    """Images that were in its validation part, by which the epoch and the thresholds were chosen."""
    of: int
    """Images that were compared."""

    def warning(self, model: str | Path) -> str:
        """Return a warning for people; empty if none was trained on."""
        if self.train == 0:
            return ""
        were = f"{self.train:,} of {counted(self.of, 'image')} were in the training part"
        return f"{model}: {were}: on new images it does worse than these figures say; --split test, or other --data"


def record_seen(folder: Path, parts: Sequence[Part], config: TrainConfig) -> None:
    """Keep the fingerprints of the training and the validation part in a run's folder, unless they are there."""
    path = folder / SEEN_FILE
    if path.exists():
        return
    content = io.BytesIO()
    train, val = (np.unique(_fingerprints(part, config)) for part in parts)
    np.savez(content, train=train, val=val)
    write_atomically(path, content.getvalue())


def count_seen(folder: Path, part: Part, config: TrainConfig) -> Seen | None:
    """Count the images of a part that a run has learned from; None if the folder does not tell."""
    try:
        require_plain(folder / SEEN_FILE, folder, _MOST_BYTES)
        with np.load(folder / SEEN_FILE) as kept:
            train, val = (_checked(kept[name]) for name in ("train", "val"))
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        MemoryError,
        ArithmeticError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ):
        return None
    found = _fingerprints(part, config)
    return Seen(int(np.isin(found, train).sum()), int(np.isin(found, val).sum()), len(found))


def _checked(fingerprints: np.ndarray) -> np.ndarray:
    if not isinstance(fingerprints, np.ndarray) or fingerprints.dtype != np.uint64 or fingerprints.ndim != 1:
        raise ValueError("no fingerprints")
    return fingerprints


def _fingerprints(part: Part, config: TrainConfig) -> np.ndarray:
    """Return the fingerprints [n], uint64, of a part's images, or of some of them, evenly spaced."""
    most = _MOST_DECODED if part.prepared is None else _MOST
    chosen = np.unique(np.linspace(0, len(part) - 1, min(len(part), most), dtype=np.int64))
    return np.fromiter((_fingerprint(image) for image in _images(part, chosen, config)), np.uint64)


def _images(part: Part, chosen: np.ndarray, config: TrainConfig) -> Iterator[np.ndarray]:
    """Yield images [3, H, W], uint8; those that cannot be read are left out."""
    if part.prepared is not None:
        yield from (part.prepared.images[index] for index in chosen)
        return
    chunks = np.split(chosen, range(_CHUNK, len(chosen), _CHUNK))
    for decoded in decode_ahead(part.source, chunks, _pair(part.size), config.workers):
        yield from decoded.images


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _fingerprint(image: np.ndarray) -> int:
    step = max(1, min(image.shape[1:]) // 32)
    return int.from_bytes(hashlib.blake2b(image[:, ::step, ::step].tobytes(), digest_size=8).digest(), "little")

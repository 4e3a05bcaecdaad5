"""Prepare a copy of a source: decode and resize it once, then read it as fast as memory allows.

A copy is a folder of the cache, named by the source's fingerprint, the size and the format's version;
`contextcaps.data.prepared_writer` describes its files. The same source gives the same bytes, however many workers
made them and however often they were stopped before.
"""

import contextlib
import errno
import functools
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from contextcaps.data.cache import cache_folder, open_or_fill, require_whole
from contextcaps.data.decoding import decode_ahead, mask_dtype, mask_tensor
from contextcaps.data.images import checked_size
from contextcaps.data.prepared_writer import FORMAT, PreparedWriter
from contextcaps.data.problems import DataError, OnBad, Problem, Problems
from contextcaps.data.progress import progress_of
from contextcaps.data.source import Source
from contextcaps.data.visibility import BatchBoxes
from contextcaps.plain_files import read_text

__all__ = ["Prepared", "prepare", "prepared_folder"]

_CHUNK = 32  # images that a worker decodes at a time


class Prepared:
    """Reads a prepared copy through memory maps; threads may share it, and pickling it maps the same files elsewhere.

    Args:
        folder: the folder that `prepare` made.

    Raises:
        DataError: it is none, or damaged.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        require_whole(self.folder)
        try:
            metadata = json.loads(read_text(self.folder / "metadata.json"))
            if metadata["format"] != FORMAT:
                raise DataError(f"{self.folder}: expected format {FORMAT}, got {metadata['format']}; prepare it anew")
            arrays = {file: self._map(file, **described) for file, described in metadata["arrays"].items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{self.folder}: not a whole prepared copy ({error!r}); prepare it anew") from None
        self.name: str = metadata["source"]
        self.kind: str = metadata["kind"]
        self.split: str | None = metadata["split"]
        self.fingerprint: str = metadata["fingerprint"]
        self.classes: tuple[str, ...] = tuple(metadata["classes"])
        self.size: tuple[int, int] = (metadata["size"][0], metadata["size"][1])
        """(height, width)."""
        self.problems = [Problem(where, what) for where, what in metadata["problems"]]
        """Images that were left out."""
        self.images: np.ndarray = arrays["images.bin"]
        """[n, 3, H, W], uint8."""
        self.targets: np.ndarray = arrays["targets.bin"]
        """[n, J], uint8."""
        self.indices: np.ndarray = arrays["indices.bin"]
        """[n], int64: indices in the source."""
        self.masks: np.ndarray | None = arrays.get("masks.bin")
        """[n, H, W]; all 0 for an image without one. None: no image has one."""
        self._box_ends: np.ndarray | None = arrays.get("box_ends.bin")
        if self._box_ends is not None:
            self._box_labels, self._box_corners = arrays["box_labels.bin"], arrays["box_corners.bin"]

    def _map(self, file: str, dtype: str, shape: list[int]) -> np.ndarray:
        if 0 in shape:
            return np.zeros(shape, dtype)  # an empty file cannot be mapped
        return np.asarray(np.memmap(self.folder / file, dtype=dtype, mode="r", shape=tuple(shape)))

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"Prepared({self.name!r}, {len(self)} images of {self.size[0]}x{self.size[1]}, {str(self.folder)!r})"

    def __reduce__(self) -> tuple[type["Prepared"], tuple[Path]]:
        return Prepared, (self.folder,)

    @functools.cached_property
    def ids(self) -> tuple[str, ...]:
        """Return the ids of all images, [n]."""
        return tuple(json.loads((self.folder / "ids.json").read_text(encoding="utf-8")))

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor, pin_memory: bool = False) -> tuple[Tensor, Tensor]:
        """Copy images [B, 3, H, W], uint8, and targets [B, J], uint8, from the files.

        Args:
            indices: [B], from 0 to n - 1, in any order.
            pin_memory: put the images into page-locked memory, from which they go to a GPU faster.
        """
        rows = self._rows(indices)
        images = torch.empty((len(rows), 3, *self.size), dtype=torch.uint8, pin_memory=pin_memory)
        # "clip" only because "raise" would copy twice; the rows have been checked.
        np.take(self.images, rows, axis=0, out=images.numpy(), mode="clip")
        return images, torch.from_numpy(np.take(self.targets, rows, axis=0))

    def mask_batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> Tensor | None:
        """Copy masks [B, H, W], uint8, or int32 for more than 255 classes; return None if the source has none."""
        if self.masks is None:
            return None
        return mask_tensor(np.take(self.masks, self._rows(indices), axis=0))

    def box_batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> BatchBoxes | None:
        """Copy the boxes of some images; return None if the source has none."""
        if self._box_ends is None:
            return None
        rows = self._rows(indices)
        ends = self._box_ends[rows]
        counts = ends - np.where(rows > 0, self._box_ends[rows - 1], 0)
        # Boxes of one image lie side by side: count down from its end.
        places = np.repeat(ends - np.cumsum(counts), counts) + np.arange(counts.sum())
        return BatchBoxes(
            torch.from_numpy(np.repeat(np.arange(len(rows)), counts)),
            torch.from_numpy(self._box_labels[places]),
            torch.from_numpy(self._box_corners[places]),
        )

    def _rows(self, indices: Sequence[int] | np.ndarray | Tensor) -> np.ndarray:
        rows = np.asarray(indices, dtype=np.int64)
        if rows.ndim != 1 or (len(rows) and (rows.min() < 0 or rows.max() >= len(self))):
            raise IndexError(f"{self.name}: expected a list of indices from 0 to {len(self) - 1}, got {indices}")
        return rows


def prepared_folder(source: Source, size: tuple[int, int] | int, cache_dir: Path | str | None = None) -> Path:
    """Return the folder where the prepared copy of a source at a size is, or would be."""
    height, width = checked_size(size)
    return cache_folder(cache_dir) / f"{source.kind}-{source.fingerprint()}-{height}x{width}-v{FORMAT}"


def prepare(
    source: Source,
    size: tuple[int, int] | int,
    cache_dir: Path | str | None = None,
    on_bad: OnBad | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> Prepared:
    """Open the prepared copy of a source, and make it first if it is not there or damaged.

    Safe to call from several processes at once: one makes the copy, the others wait for it.

    Args:
        source: the source to copy.
        size: (height, width), or one number for both; images are squashed to it, their aspect ratio is not kept.
        cache_dir: folder for prepared copies; by default $CONTEXTCAPS_CACHE, or contextcaps in the user's cache.
        on_bad: "stop": try all images, then refuse, naming the first ten that cannot be read; "skip": leave them out
            (`Prepared.problems`). By default as the source was opened.
        workers: decode so many images at once; as many as there are cores by default.
        progress: show progress on standard error: a bar, or a line now and then where that is no terminal.

    Raises:
        DataError: images cannot be read, or the folder cannot be written to or has not enough room.
    """
    try:
        height, width = checked_size(size)
    except ValueError as error:
        raise DataError(str(error)) from None  # commands print a DataError in one line
    problems = Problems(source.name, source.problems.on_bad if on_bad is None else on_bad)
    final = prepared_folder(source, (height, width), cache_dir)

    def tell_waiting() -> None:
        if progress:
            print(f"{source.name}: another process is preparing it; waiting for it", file=sys.stderr, flush=True)

    def fill(folder: Path) -> None:
        _write(source, (height, width), folder, problems, workers, progress)

    with _disk_errors(final.parent, source, (height, width)):
        prepared = open_or_fill(final, lambda: _open(final), fill, tell_waiting)
    problems.found = list(prepared.problems)  # a copy made with "skip" is no good where bad images are to be refused
    problems.settle()
    return prepared


def _open(final: Path) -> Prepared | None:
    """Open the prepared copy; return None if it is missing or damaged."""
    try:
        return Prepared(final)
    except DataError:
        return None


def _bytes_needed(source: Source, size: tuple[int, int]) -> int:
    """Estimate the copy's size in bytes before its images are read."""
    height, width = size
    with_mask = height * width * mask_dtype(len(source.classes)).itemsize if _has_mask(source) else 0
    return len(source) * (3 * height * width + with_mask + len(source.classes) + 64)  # 64: index, id, some boxes


def _has_mask(source: Source) -> bool:
    try:
        return source.sample(0).mask is not None
    except (OSError, DataError):
        return False  # reported when it is decoded


@contextlib.contextmanager
def _disk_errors(folder: Path, source: Source, size: tuple[int, int]) -> Iterator[None]:
    """Turn errors of the disk into one message; errors of images never get here."""
    try:
        yield
    except OSError as error:
        elsewhere = (
            "or choose another folder with --cache (in Python cache_dir) or $CONTEXTCAPS_CACHE; "
            "StreamLoader in Python needs no copy"
        )
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed = f"{_bytes_needed(source, size):,} bytes"
            raise DataError(
                f"{folder}: the disk is full; the prepared copy needs {needed}. Free some space, {elsewhere}"
            ) from error
        raise DataError(
            f"{folder}: cannot be written to ({error.strerror or error}). Mend that, {elsewhere}"
        ) from error


def _write(
    source: Source, size: tuple[int, int], folder: Path, problems: Problems, workers: int | None, progress: bool
) -> None:
    """Decode a source into the files of a prepared copy in an empty folder."""
    free = shutil.disk_usage(folder).free
    if free < _bytes_needed(source, size):
        raise OSError(errno.ENOSPC, f"{free:,} bytes free")
    targets = source.targets()
    chunks = np.split(np.arange(len(source)), range(_CHUNK, len(source), _CHUNK))
    with (
        PreparedWriter(folder, size, len(source.classes)) as writer,
        progress_of(f"preparing {source.name}", len(source), progress) as tell,
    ):
        for decoded in decode_ahead(source, chunks, size, workers):
            problems.found += decoded.bad
            if not (problems.found and problems.on_bad == "stop"):  # nothing to keep: only look for more problems
                writer.add(decoded, targets[decoded.indices])
            tell(len(decoded.indices) + len(decoded.bad))
        problems.settle()
        if writer.count == 0:
            raise DataError(f"{source.name}: no image can be read; {problems.summary()}")
        writer.finish(
            {
                "source": source.name,
                "kind": source.kind,
                "split": source.split,
                "fingerprint": source.fingerprint(),
                "size": list(size),
                "classes": list(source.classes),
                "problems": [[problem.where, problem.what] for problem in problems.found],
            }
        )

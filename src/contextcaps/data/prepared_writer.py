"""Write the files of a prepared copy.

    images.bin       [n, 3, H, W], uint8: the layout of a batch, so that gathering one is B copies of whole images
    targets.bin      [n, J], uint8: 1 present, 0 absent, 255 unknown
    indices.bin      [n], int64: each image's index in the source, from which bad images may have been left out
    masks.bin        [n, H, W], uint8 or uint16: class index + 1, 0 for none; only if an image has a mask
    box_ends.bin     [n], int64: where each image's boxes end in the next two; only if an image has boxes
    box_labels.bin   [boxes], int64
    box_corners.bin  [boxes, 4], float32: left, top, right, bottom, as fractions
    ids.json         [n]
    metadata.json    all else, with the arrays' types and shapes

Plain arrays in little-endian bytes without a header, written front to back: a disk that is full then gives an error,
where a memory-mapped file would end the process.
"""

import contextlib
import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from contextcaps.data.decoding import Decoded, mask_dtype

__all__ = ["FORMAT", "PreparedWriter"]

FORMAT = 3
"""Version of the files' layout and of the pixels in them; part of the folder's name."""


class PreparedWriter:
    """Appends decoded samples to the files of a prepared copy.

    Args:
        folder: an empty folder.
        size: (height, width) of the images.
        classes: number of classes.
    """

    def __init__(self, folder: Path, size: tuple[int, int], classes: int) -> None:
        self.folder, self.size, self.mask_dtype = folder, size, mask_dtype(classes)
        self.count = 0
        """Images written so far."""
        self._files: dict[str, BinaryIO] = {}
        self._arrays: dict[str, dict[str, Any]] = {}
        self._ids: list[str] = []
        self._box_counts: list[int] = []
        self._has_boxes = False

    def __enter__(self) -> "PreparedWriter":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # closing writes once more to a disk that was full before
                file.close()

    def add(self, decoded: Decoded, targets: np.ndarray) -> None:
        """Append samples and their targets [n, J]."""
        self._append("images.bin", decoded.images)
        self._append("targets.bin", targets)
        self._append("indices.bin", decoded.indices)
        if decoded.masks is not None and "masks.bin" not in self._files:
            for _ in range(self.count):  # those before the first with a mask
                self._append("masks.bin", np.zeros((1, *self.size), self.mask_dtype))
        if decoded.masks is not None:
            self._append("masks.bin", decoded.masks)
        elif "masks.bin" in self._files:
            self._append("masks.bin", np.zeros((len(decoded.ids), *self.size), self.mask_dtype))
        known = [boxes for boxes in decoded.boxes if boxes is not None]
        if known:
            self._has_boxes = True
            self._append("box_labels.bin", np.concatenate([boxes.labels for boxes in known]).astype("<i8"))
            self._append("box_corners.bin", np.concatenate([boxes.corners for boxes in known]).astype("<f4"))
        self._box_counts += [0 if boxes is None else len(boxes.labels) for boxes in decoded.boxes]
        self._ids += decoded.ids
        self.count += len(decoded.ids)

    def finish(self, metadata: dict[str, Any]) -> None:
        """Write what is known only now; the metadata last of all."""
        if self._has_boxes:
            self._append("box_ends.bin", np.cumsum(self._box_counts, dtype="<i8"))
        for file in self._files.values():
            file.close()
        (self.folder / "ids.json").write_text(json.dumps(self._ids), encoding="ascii")
        whole = {"format": FORMAT, **metadata, "arrays": self._arrays}
        text = json.dumps(whole, indent=1, sort_keys=True)
        (self.folder / "metadata.json").write_text(text, encoding="ascii")

    def _append(self, name: str, rows: np.ndarray) -> None:
        stored = np.ascontiguousarray(rows, dtype=rows.dtype.newbyteorder("<"))
        if name not in self._files:
            self._files[name] = open(self.folder / name, "wb")  # noqa: SIM115 (closed by __exit__)
            self._arrays[name] = {"dtype": stored.dtype.str, "shape": [0, *rows.shape[1:]]}
        self._arrays[name]["shape"][0] += len(rows)
        self._files[name].write(stored.data)

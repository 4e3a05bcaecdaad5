"""Read scores and targets of many images piece by piece, so that they need not fit into memory or onto a device.

The metrics here are our own because they are exact in bounded memory, over memory-mapped scores that several processes
have written; torchmetrics and scikit-learn, which the tests compare with, hold all pairs in memory or bin the scores.

An unknown label is a target of `UNKNOWN`. Its pair of image and class is given a score of minus infinity, which no
threshold reaches, and a target of 0: it is never predicted, never present, and stands below all others in a ranking.
So whatever counts pairs from a score upwards gets what it would get without that pair. Only what counts all pairs,
whatever their score, has to ask `Pairs.labelled`.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from contextcaps.data.unknown import UNKNOWN, is_unknown

__all__ = ["CHUNK_BYTES", "PAIR_BYTES", "Array", "Pairs"]

Array = Tensor | np.ndarray
"""A tensor or a NumPy array; memory-mapped ones are read a piece at a time."""

CHUNK_BYTES = 256 * 2**20
"""Working memory of a metric by default."""

PAIR_BYTES = 96
"""Memory that one (image, class) pair needs at most: its score, its rank, and counts up to there."""


class Pairs:
    """Gives scores and targets [n, J] in checked pieces on a device.

    A piece is as large as `chunk_bytes` allows, counting `PAIR_BYTES` for each pair, and at least one image (`rows`) or
    one class (`columns`).

    Args:
        scores: [n, J], of any floating type; half precision is upcast to float32.
        targets: [n, J], 0 or 1, of any type; `UNKNOWN` (255) for an unknown label.
        device: device of the pieces; by default that of the scores.
        chunk_bytes: working memory.
    """

    def __init__(
        self,
        scores: Array,
        targets: Array,
        device: torch.device | str | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        for name, array in (("scores", scores), ("targets", targets)):
            if not isinstance(array, Tensor | np.ndarray):
                raise ValueError(f"{name}: expected a tensor or a NumPy array, got {type(array).__name__}")
        if scores.ndim != 2:
            raise ValueError(f"scores: expected shape [n, J], got {list(scores.shape)}")
        if targets.shape != scores.shape:
            n, classes = scores.shape
            raise ValueError(f"targets: expected shape [n={n}, J={classes}], got {list(targets.shape)}")
        floating = scores.is_floating_point() if isinstance(scores, Tensor) else scores.dtype.kind == "f"
        if not floating or (isinstance(scores, np.ndarray) and scores.dtype.itemsize > 8):
            raise ValueError(f"scores: expected half, single or double precision, got {scores.dtype}")
        if chunk_bytes < 1:
            raise ValueError(f"chunk_bytes: expected at least 1, got {chunk_bytes}")
        self.scores, self.targets = scores, targets
        self.images, self.classes = int(scores.shape[0]), int(scores.shape[1])
        self.chunk_bytes = chunk_bytes
        self.has_unknown = False
        """Whether a piece that was read so far has unknown labels."""
        self.device = torch.device(device or (scores.device if isinstance(scores, Tensor) else "cpu"))

    def labelled(self, scores: Tensor) -> Tensor:
        """Return which pairs of a piece that was read have a label that is known, as bool."""
        return scores > -torch.inf if self.has_unknown else torch.ones_like(scores, dtype=torch.bool)

    def rows(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield some images at a time: which, their scores [r, J], and their targets [r, J] as bool."""
        step = max(1, self.chunk_bytes // (PAIR_BYTES * max(1, self.classes)))
        for first in range(0, self.images, step):
            piece = slice(first, min(first + step, self.images))
            scores, targets = self._read(piece, slice(None))
            yield piece, scores.contiguous(), targets.contiguous()

    def columns(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield some classes at a time: which, their scores [c, n], and their targets [c, n] as bool."""
        step = max(1, self.chunk_bytes // (PAIR_BYTES * max(1, self.images)))
        for first in range(0, self.classes, step):
            piece = slice(first, min(first + step, self.classes))
            scores, targets = self._read(slice(None), piece)
            yield piece, scores.T.contiguous(), targets.T.contiguous()

    def _read(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        scores = _tensor(self.scores[rows, columns]).to(self.device)
        if scores.dtype not in (torch.float32, torch.float64):
            scores = scores.float()  # exact
        undefined = int(scores.isnan().sum())
        if undefined:
            kind, piece = ("classes", columns) if rows.start is None else ("images", rows)
            where = f"{kind} {piece.start} to {piece.stop - 1}"
            raise ValueError(f"scores: expected numbers, got NaN in {undefined} of {scores.numel()} pairs of {where}")
        truth, unknown = (each.to(self.device) for each in _truth(self.targets[rows, columns]))
        self.has_unknown = self.has_unknown or bool(unknown.any())
        if self.has_unknown:
            if bool((scores[~unknown] == -torch.inf).any()):
                raise ValueError("scores: expected finite ones beside unknown labels, got minus infinity")
            scores = scores.masked_fill(unknown, -torch.inf)
        return scores, truth


def _tensor(piece: Array) -> Tensor:
    """Return a piece of an array as a tensor; copy a NumPy array, whose memory may be read-only or swapped."""
    if isinstance(piece, Tensor):
        return piece.detach()
    return torch.from_numpy(np.array(piece, dtype=piece.dtype.newbyteorder("="), subok=False))


def _truth(piece: Array) -> tuple[Tensor, Tensor]:
    """Return which targets are 1, and which are unknown; raise for anything but 0, 1 and `UNKNOWN`."""
    if piece.dtype in (torch.bool, np.dtype(bool)):
        present = _tensor(piece)
        return present, torch.zeros_like(present)
    present, unknown = piece == 1, is_unknown(piece) if isinstance(piece, Tensor) else piece == UNKNOWN
    if not bool((present | (piece == 0) | unknown).all()):
        raise ValueError(f"targets: expected 0, 1 and {UNKNOWN} (unknown) only, or bool, got other values")
    return _tensor(present), _tensor(unknown)

"""Decode samples to arrays of one size, with several workers at once, in the order asked for.

Workers are threads: decoding releases Python's lock, and threads were measured as fast as processes on photographs.
Sources that make pixels in Python themselves (`scenes`) hold the lock while they do; where that would take more than a
few seconds, the workers are forked processes instead (on Linux). The result is the same either way.
"""

import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from contextcaps.cores import usable_cores
from contextcaps.data.decoding_process import stoppable
from contextcaps.data.images import BadImage, decode, image_size, resize_mask
from contextcaps.data.problems import DataError, Problem
from contextcaps.data.sample import Boxes, Sample
from contextcaps.data.source import Source

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Decoded",
    "checked_mask",
    "decode_ahead",
    "decode_samples",
    "default_workers",
    "map_in_order",
    "mask_dtype",
    "mask_tensor",
]

Task = TypeVar("Task")
Result = TypeVar("Result")

_PROCESSES_PAY_FROM = 4.0  # seconds of work in one process; less is done before the others have started


@dataclasses.dataclass(frozen=True)
class Decoded:
    """Holds some decoded samples of a source; those that could not be read are left out and named in `bad`."""

    indices: np.ndarray
    """[n], int64: indices in the source."""
    ids: tuple[str, ...]
    """[n]."""
    images: np.ndarray
    """[n, 3, H, W], uint8."""
    boxes: tuple[Boxes | None, ...]
    """[n]."""
    masks: np.ndarray | None
    """[n, H, W], class index + 1, 0 for none of the classes; all 0 for a sample without a mask. None: no sample has."""
    bad: tuple[Problem, ...]
    """Why samples were left out."""

    @classmethod
    def join(cls, pieces: Sequence["Decoded"]) -> "Decoded":
        """Join several into one, in order."""
        if len(pieces) == 1:
            return pieces[0]
        masks = None
        if any(piece.masks is not None for piece in pieces):
            dtype = next(piece.masks.dtype for piece in pieces if piece.masks is not None)
            shapes = [(len(piece.ids), *piece.images.shape[2:]) for piece in pieces]
            masks = np.concatenate(
                [
                    np.zeros(shape, dtype) if piece.masks is None else piece.masks
                    for piece, shape in zip(pieces, shapes, strict=True)
                ]
            )
        return cls(
            indices=np.concatenate([piece.indices for piece in pieces]),
            ids=tuple(name for piece in pieces for name in piece.ids),
            images=np.concatenate([piece.images for piece in pieces]),
            boxes=tuple(boxes for piece in pieces for boxes in piece.boxes),
            masks=masks,
            bad=tuple(problem for piece in pieces for problem in piece.bad),
        )


def mask_dtype(classes: int) -> np.dtype:
    """Return the smallest integer type that holds every class index + 1."""
    return np.dtype("u1") if classes < 256 else np.dtype("<u2")


def mask_tensor(masks: np.ndarray) -> "Tensor":
    """Return masks as a tensor: uint8, or int32 for 16 bits, since torch supports few operations on uint16."""
    import torch  # here, as tagging decodes without it

    return torch.from_numpy(masks if masks.dtype == np.uint8 else masks.astype(np.int32))


def decode_samples(source: Source, indices: Sequence[int] | np.ndarray, size: tuple[int, int]) -> Decoded:
    """Read some samples of a source and squash them to (height, width); bad ones are left out and named."""
    images = np.empty((len(indices), 3, *size), dtype=np.uint8)
    masks: np.ndarray | None = None
    kept: list[tuple[int, str, Boxes | None]] = []
    bad: list[Problem] = []
    for index in indices:
        where = f"sample {index}"
        try:
            sample = source.sample(int(index))
            where = sample.id
            images[len(kept)] = decode(sample.image, size).transpose(2, 0, 1)
            if sample.mask is not None:
                if masks is None:
                    masks = np.zeros((len(indices), *size), dtype=mask_dtype(len(source.classes)))
                masks[len(kept)] = resize_mask(checked_mask(sample, len(source.classes)), size)
        except (OSError, DataError, MemoryError) as error:  # others, but for BadImage (a DataError), are faults of ours
            bad.append(Problem(where, str(error) or "there is not enough memory to decode it"))
            if masks is not None:
                masks[len(kept)] = 0
        else:
            kept.append((int(index), sample.id, sample.boxes))
    return Decoded(
        indices=np.array([index for index, _, _ in kept], dtype=np.int64),
        ids=tuple(name for _, name, _ in kept),
        images=images[: len(kept)],
        boxes=tuple(boxes for _, _, boxes in kept),
        masks=None if masks is None else masks[: len(kept)],
        bad=tuple(bad),
    )


def checked_mask(sample: Sample, classes: int) -> np.ndarray:
    """Read a sample's mask; raise `BadImage` if its size is not the image's or a value is no class."""
    assert sample.mask is not None
    mask, expected = sample.mask(), image_size(sample.image)
    if mask.shape != expected:
        shape = " × ".join(str(side) for side in mask.shape)
        raise BadImage(f"the mask is {shape} (height × width), its image {expected[0]} × {expected[1]}")
    if mask.min() < 0 or mask.max() > classes:
        raise BadImage(f"the mask's values go from {mask.min()} to {mask.max()}; expected 0 to {classes}")
    return mask


def default_workers() -> int:
    """Return the number of workers where nobody asks for one: that of the cores."""
    return usable_cores()


def decode_ahead(
    source: Source,
    chunks: Sequence[np.ndarray],
    size: tuple[int, int],
    workers: int | None = None,
    ahead: int = 0,
) -> Generator[Decoded, None, None]:
    """Decode chunks of indices by several workers, in order.

    Args:
        source: the samples' source.
        chunks: indices; one worker decodes a chunk.
        size: (height, width).
        workers: chunks to decode at once; as many as there are cores by default.
        ahead: chunks that may wait in memory to be asked for, at least two for each worker.
    """
    workers = default_workers() if workers is None else max(1, workers)
    pool: Executor
    if workers > 1 and _wants_processes(source, chunks):
        # Fork, not spawn: the source need not be picklable, and a script needs no `if __name__ == "__main__"`.
        context = multiprocessing.get_context("fork")
        pool = ProcessPoolExecutor(workers, context, _start_process, (source, size, os.getpid()))
        function: Callable[[np.ndarray], Decoded] = _decode_in_process
    else:
        pool = ThreadPoolExecutor(workers, "decode")

        def function(chunk: np.ndarray) -> Decoded:
            return decode_samples(source, chunk, size)

    try:
        yield from map_in_order(pool, function, chunks, max(ahead, 2 * workers))
    except BrokenProcessPool:
        raise DataError(
            f"{source.name}: a process that read images was killed (out of memory?); try workers=1"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def map_in_order(
    pool: Executor, function: Callable[[Task], Result], tasks: Iterable[Task], ahead: int
) -> Iterator[Result]:
    """Yield `function` of each task, in the tasks' order; at most `ahead` results wait to be asked for."""
    waiting: deque[Future[Result]] = deque()
    stop = threading.Event()
    if not isinstance(pool, ProcessPoolExecutor):  # threads; they cannot be ended, but can be told
        function = stoppable(function, stop)
    try:
        for task in tasks:
            waiting.append(pool.submit(function, task))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        stop.set()


def _wants_processes(source: Source, chunks: Sequence[np.ndarray]) -> bool:
    """Return whether the source makes its pixels in Python, and so many that processes are worth starting."""
    if sys.platform != "linux" or multiprocessing.current_process().daemon or not len(chunks):
        return False
    try:
        if not isinstance(source.sample(int(chunks[0][0])).image, np.ndarray):
            return False
        start = time.perf_counter()
        for index in chunks[0][:3]:
            source.sample(int(index))
        seconds = (time.perf_counter() - start) / len(chunks[0][:3])
    except (OSError, DataError, MemoryError):
        return False  # reported when it is decoded
    return seconds * sum(len(chunk) for chunk in chunks) > _PROCESSES_PAY_FROM


_process: tuple[Source, tuple[int, int]]  # in a worker process: the source, and the size to decode to


def _start_process(source: Source, size: tuple[int, int], parent: int) -> None:
    global _process
    _process = (source, size)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # OpenMP's threads do not survive a fork
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    """End this process soon after its parent, even if that was killed."""
    while os.getppid() == parent:
        time.sleep(0.25)
    os._exit(1)


def _decode_in_process(chunk: np.ndarray) -> Decoded:
    source, size = _process
    return decode_samples(source, chunk, size)

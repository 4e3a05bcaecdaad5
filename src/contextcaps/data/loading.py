"""Load batches for training and evaluation from a prepared copy, or stream them from a source.

    loader = PreparedLoader(prepare(source, 128), batch_size=64, shuffle=True, seed=3)
    for epoch in range(10):
        for batch in loader:  # each pass is an epoch with an order of its own
            ...

The order is a function of (seed, epoch) alone, the same for both kinds of loader. A loader can stop and resume within
an epoch (`state_dict`), and several processes can share an epoch (`rank`, `world_size`), each image in exactly one of
them; torch's DataLoader cannot resume within an epoch, and DistributedSampler repeats images to even out processes.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from contextcaps.data.decoding import Decoded, decode_ahead, map_in_order, mask_tensor
from contextcaps.data.images import checked_size
from contextcaps.data.prepared import Prepared
from contextcaps.data.problems import OnBad, Problems
from contextcaps.data.source import Source
from contextcaps.data.visibility import BatchBoxes

__all__ = ["Batch", "FeatureBatch", "GatheringLoader", "Loader", "PreparedLoader", "StreamLoader"]

_PIECE = 32  # images that a worker decodes at a time


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some images and what is known of them."""

    images: Tensor
    """[B, 3, H, W], uint8."""
    targets: Tensor
    """[B, J], uint8: 1 present, 0 absent, `UNKNOWN` (255) not known."""
    indices: np.ndarray
    """[B], int64: in the prepared copy or the source."""
    ids: tuple[str, ...]
    """[B]."""
    epoch: int
    step: int
    """Which batch of its epoch this is, from 0."""
    boxes: BatchBoxes | None = None
    """Where the data has boxes."""
    masks: Tensor | None = None
    """[B, H, W], uint8 or int32: class index + 1, 0 for none of the classes or no mask. Where the data has masks."""

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on a device; from pinned memory without waiting for the copy."""
        return dataclasses.replace(
            self,
            images=self.images.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
            boxes=None if self.boxes is None else self.boxes.to(device),
            masks=None if self.masks is None else self.masks.to(device, non_blocking=True),
        )


@dataclasses.dataclass(frozen=True)
class FeatureBatch:
    """A frozen backbone's features of some images, and what is known of them."""

    features: Tensor
    """[B, C, H, W], float16."""
    targets: Tensor
    """[B, J], uint8: 1 present, 0 absent, `UNKNOWN` (255) not known."""
    indices: np.ndarray
    """[B], int64: in the prepared copy."""
    ids: tuple[str, ...]
    """[B]."""
    epoch: int
    step: int
    """Which batch of its epoch this is, from 0."""

    def __len__(self) -> int:
        return len(self.features)

    def to(self, device: torch.device | str) -> "FeatureBatch":
        """Return the batch on a device; from pinned memory without waiting for the copy."""
        return dataclasses.replace(
            self,
            features=self.features.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
        )


AnyBatch = TypeVar("AnyBatch", Batch, FeatureBatch)


class Loader(abc.ABC, Generic[AnyBatch]):
    """Iterates over epochs of batches; subclasses say where a batch comes from.

    Each `iter` begins the epoch `self.epoch` at its first batch, or resumes at the position of a loaded state; the
    epoch is increased when it is complete. One iteration at a time.

    Args:
        count: number of images.
        batch_size: images per batch.
        shuffle: a new random order for each epoch, otherwise the data's order.
        seed: seed of the random orders; the same in all processes that share the data.
        drop_last: leave out what does not fill a batch. With several processes all then have the same number of
            batches; otherwise one may have one image, and so one batch, more than another.
        rank, world_size: number of this process, and of all processes. Process r takes every world_size-th image,
            from the r-th on.
        relabel: from targets [B, J] and ids [B] of some images to the targets that a batch has in their place.
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        relabel: Callable[[np.ndarray, Sequence[str]], np.ndarray] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank: expected 0 to world_size - 1 = {world_size - 1}, got {rank}")
        self.count, self.batch_size, self.shuffle, self.seed = count, batch_size, shuffle, seed
        self.drop_last, self.rank, self.world_size = drop_last, rank, world_size
        self.relabel = relabel
        self.epoch = 0
        """Number of the epoch that is running, or comes next."""
        self.step = 0
        """Batches of this epoch that have been yielded."""
        self._resumed = False

    def __len__(self) -> int:
        """Return the number of batches in an epoch of this process."""
        own = len(range(self.rank, self.count, self.world_size))
        return self.count // self.world_size // self.batch_size if self.drop_last else -(-own // self.batch_size)

    def __iter__(self) -> Iterator[AnyBatch]:
        if not self._resumed:
            self.step = 0
        self._resumed = False
        first = self.step
        for step, batch in enumerate(self._batches(self._indices()[first:], self.epoch, first), first):
            self.step = step + 1
            if batch is not None and self.relabel is not None:
                targets = torch.from_numpy(self.relabel(batch.targets.numpy(), batch.ids))  # [B, J]
                batch = dataclasses.replace(batch, targets=targets)
            if batch is not None:
                yield batch
        self.epoch, self.step = self.epoch + 1, 0

    def _indices(self) -> list[np.ndarray]:
        """Return the indices of each of this epoch's batches."""
        order = np.arange(self.count)
        if self.shuffle:
            order = np.random.default_rng([self.seed, self.epoch]).permutation(self.count)
        own = order[self.rank :: self.world_size]
        return [own[step * self.batch_size : (step + 1) * self.batch_size] for step in range(len(self))]

    @abc.abstractmethod
    def _batches(self, indices: list[np.ndarray], epoch: int, first: int) -> Iterator[AnyBatch | None]:
        """Yield a batch for each set of indices, in order, beginning with step `first`; None for an empty one."""

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position: after the batch that was yielded last."""
        return {"epoch": self.epoch, "step": self.step, **self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the position of a loader with the same settings; the next `iter` continues that epoch."""
        missing = [name for name in self.state_dict() if name not in state]
        if missing:
            raise ValueError(f"state: expected what state_dict gave, but it lacks {', '.join(missing)}")
        for name, mine in self._settings().items():
            if state[name] != mine:
                raise ValueError(f"{name}: the saved position is of a loader with {state[name]}, this one has {mine}")
        self.epoch, self.step, self._resumed = int(state["epoch"]), int(state["step"]), True

    def _settings(self) -> dict[str, Any]:
        """Return the settings that a position depends on."""
        names = ("count", "batch_size", "shuffle", "seed", "drop_last", "world_size")
        return {name: getattr(self, name) for name in names}


class GatheringLoader(Loader[AnyBatch]):
    """Gathers batches from memory or mapped files, in one thread a few batches ahead.

    Args:
        count: number of images.
        batch_size: images per batch.
        prefetch: batches to gather ahead; 0 gathers each when it is asked for.
        pin_memory: put images into page-locked memory, from which they go to a GPU faster.
        settings: options of `Loader`.
    """

    def __init__(
        self, count: int, batch_size: int, *, prefetch: int = 2, pin_memory: bool = False, **settings: Any
    ) -> None:
        super().__init__(count, batch_size, **settings)
        if prefetch < 0:
            raise ValueError(f"prefetch: expected 0 or more batches, got {prefetch}")
        self.prefetch, self.pin_memory = prefetch, pin_memory

    def _batches(self, indices: list[np.ndarray], epoch: int, first: int) -> Iterator[AnyBatch | None]:
        def gather(task: tuple[int, np.ndarray]) -> AnyBatch:
            return self._gather(task[1], epoch, task[0])

        tasks = enumerate(indices, first)
        if self.prefetch == 0:
            yield from map(gather, tasks)
            return
        with ThreadPoolExecutor(1, "gather") as pool:
            yield from map_in_order(pool, gather, tasks, self.prefetch)

    @abc.abstractmethod
    def _gather(self, indices: np.ndarray, epoch: int, step: int) -> AnyBatch:
        """Gather one batch."""


class PreparedLoader(GatheringLoader[Batch]):
    """Loads batches from a prepared copy.

    Args:
        prepared: the copy.
        batch_size: images per batch.
        settings: options of `GatheringLoader`.
    """

    def __init__(self, prepared: Prepared, batch_size: int, **settings: Any) -> None:
        super().__init__(len(prepared), batch_size, **settings)
        self.prepared = prepared

    @property
    def classes(self) -> tuple[str, ...]:
        return self.prepared.classes

    def _gather(self, indices: np.ndarray, epoch: int, step: int) -> Batch:
        prepared = self.prepared
        images, targets = prepared.batch(indices, self.pin_memory)
        ids = tuple(prepared.ids[index] for index in indices)
        boxes, masks = prepared.box_batch(indices), prepared.mask_batch(indices)
        return Batch(images, targets, indices, ids, epoch, step, boxes, masks)


class StreamLoader(Loader[Batch]):
    """Decodes batches from a source as they are needed: nothing is written, and memory holds about two batches ahead.

    Images that cannot be read end the iteration with a `DataError`, or with on_bad="skip" are left out of their batch,
    which is then smaller, and named in `problems`.

    Args:
        source: the source of the images.
        size: (height, width), or one number for both; images are squashed to it.
        batch_size: images per batch.
        workers: decode so many images at once; as many as there are cores by default.
        on_bad: "stop" at images that cannot be read, or "skip" them; by default as the source was opened.
        pin_memory: put images into page-locked memory, from which they go to a GPU faster.
        settings: options of `Loader`.
    """

    def __init__(
        self,
        source: Source,
        size: tuple[int, int] | int,
        batch_size: int,
        *,
        workers: int | None = None,
        on_bad: OnBad | None = None,
        pin_memory: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(len(source), batch_size, **settings)
        self.source, self.workers, self.pin_memory = source, workers, pin_memory
        self.size = checked_size(size)
        if workers is not None and workers < 1:
            raise ValueError(f"workers: expected at least 1, or None for as many as there are cores, got {workers}")
        self.problems = Problems(source.name, source.problems.on_bad if on_bad is None else on_bad)
        """Images that could not be read, each once."""

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.classes

    def _batches(self, indices: list[np.ndarray], epoch: int, first: int) -> Iterator[Batch | None]:
        # A batch in several pieces, so that all workers begin with the first one.
        pieces = [np.split(each, range(_PIECE, len(each), _PIECE)) for each in indices]
        ahead = 2 * -(-self.batch_size // _PIECE)
        flat = [piece for of_batch in pieces for piece in of_batch]
        decoded = decode_ahead(self.source, flat, self.size, self.workers, ahead)
        with contextlib.closing(decoded):
            for step, of_batch in enumerate(pieces, first):
                whole = Decoded.join([next(decoded) for _ in of_batch])
                self.problems.found += [problem for problem in whole.bad if problem not in self.problems.found]
                self.problems.settle()
                yield self._batch(whole, epoch, step) if whole.ids else None

    def _batch(self, decoded: Decoded, epoch: int, step: int) -> Batch:
        targets = torch.from_numpy(self.source.targets_of(decoded.indices.tolist()))  # [B, J]
        images, boxes = torch.from_numpy(decoded.images), None
        if any(each is not None for each in decoded.boxes):
            boxes = BatchBoxes.from_samples(decoded.boxes)
        return Batch(
            images.pin_memory() if self.pin_memory else images,
            targets,
            decoded.indices,
            decoded.ids,
            epoch,
            step,
            boxes,
            None if decoded.masks is None else mask_tensor(decoded.masks),
        )

"""Batches: photographs of all requests go through the network together.

One thread computes. While it does, decoded photographs gather, and it takes as many as there are, up to a batch. Where
it is free it starts at once, unless others are being decoded: for those it waits a few milliseconds. So a lone request
never waits, and a loaded server has full batches.
"""

import asyncio
import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from contextcaps.serving.engine import Engine, Features, Known, Scores

__all__ = ["BATCH", "Batcher", "Computed"]

BATCH = 16
"""Photographs of a batch at most; larger ones gain nothing on a CPU (docs/decisions/serving.md)."""
WAIT = 0.004
"""Seconds that a batch waits for photographs that are being decoded."""


@dataclasses.dataclass(frozen=True, eq=False)
class Computed:
    """What the network gave for a photograph."""

    features: Features
    scores: Scores
    """[J]."""


@dataclasses.dataclass(eq=False)
class _Waiting:
    pixels: np.ndarray
    known: Known
    done: "asyncio.Future[Computed]"


class Batcher:
    """Computes photographs with one model, in batches; lives in one event loop.

    Args:
        engine: the model.
        thread: computes; one at a time.
        tell: called with each batch's size when it is done.
    """

    def __init__(self, engine: Engine, thread: ThreadPoolExecutor, tell: Callable[[int], None]) -> None:
        self.engine, self._thread, self._tell = engine, thread, tell
        self.coming = 0
        """Photographs that are being decoded for it."""
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def compute(self, pixels: np.ndarray, known: Known) -> Computed:
        """Return what the network gives for a photograph's pixels [3, H, W]; who is cancelled frees its place."""
        waiting = _Waiting(pixels, known, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._arrived.set()
        return await waiting.done

    def start(self) -> None:
        """Begin to compute."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End; whoever still waits is cancelled."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        while self._waiting:
            self._waiting.popleft().done.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if self.coming and len(self._waiting) < BATCH:
                await self._gather(loop.time() + WAIT)
            batch = self._take()
            if not batch:
                continue
            try:
                found = await loop.run_in_executor(self._thread, self._compute, batch)
            except Exception as error:  # such as too little memory: whoever asked is told
                found = [error] * len(batch)
            for each, result in zip(batch, found, strict=True):
                if each.done.done():  # its client has gone
                    continue
                if isinstance(result, Exception):
                    each.done.set_exception(result)
                else:
                    each.done.set_result(result)
            self._tell(len(batch))

    async def _gather(self, until: float) -> None:
        """Wait for photographs that are being decoded, until a batch is full or the time has come."""
        loop = asyncio.get_running_loop()
        while self.coming and len(self._waiting) < BATCH and (left := until - loop.time()) > 0:
            self._arrived.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), left)

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < BATCH:
            each = self._waiting.popleft()
            if not each.done.done():
                batch.append(each)
        if self._waiting:
            self._arrived.set()
        else:
            self._arrived.clear()
        return batch

    def _compute(self, batch: Sequence[_Waiting]) -> "list[Computed | Exception]":
        """Compute a batch; where that fails, each photograph alone, so that only the one at fault does."""
        try:
            found = self.engine.compute([each.pixels for each in batch], [each.known for each in batch])
        except Exception as error:
            if len(batch) == 1:
                return [error]
            return [result for each in batch for result in self._compute([each])]
        return [Computed(*each) for each in found]

"""What all routes share: the models, their batches, the threads, and the limits."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from contextcaps.data.decoding import default_workers
from contextcaps.data.images import BadImage
from contextcaps.out_of_memory import is_out_of_memory
from contextcaps.serving.admission import Admission, ByteBudget
from contextcaps.serving.batching import Batcher, Computed
from contextcaps.serving.bodies import Uploaded, body_of
from contextcaps.serving.config import ServeConfig
from contextcaps.serving.engine import Engine, Known
from contextcaps.serving.kept import Kept
from contextcaps.serving.memory import give_back_memory
from contextcaps.serving.metrics import Metrics
from contextcaps.serving.refusals import Refused

__all__ = ["Answered", "Service", "unless_gone"]

Result = TypeVar("Result")

_BODIES = 8
"""Bodies of the largest size that are in memory at once."""
_TIDY_SECONDS = 10.0
_HEADS = 64
"""Answers of the page, and explanations, that wait at once."""


@dataclasses.dataclass(frozen=True, eq=False)
class Answered:
    """A photograph that was computed, or why it could not be read."""

    name: str | int
    found: Computed | None
    error: str | None = None


class Service:
    """Computes for all routes of one process; lives in one event loop, between `start` and `stop`.

    Args:
        config: limits.
        engines: by the names that clients have for them, the default first.
    """

    def __init__(self, config: ServeConfig, engines: dict[str, Engine]) -> None:
        self.config, self.engines = config, engines
        self.metrics = Metrics()
        self.photographs = Admission(config.queue)
        self.heads = Admission(_HEADS)
        self.bytes = ByteBudget(_BODIES * config.max_bytes)
        self.kept = Kept(int(config.keep_megabytes * 2**20))
        self.is_ready = False
        self._since_tidy = 0  # photographs
        self._decoding = ThreadPoolExecutor(max(1, default_workers() // config.workers), "decode")
        self._computing = ThreadPoolExecutor(1, "compute")
        self._head = ThreadPoolExecutor(1, "head")
        self._batchers = {name: Batcher(engine, self._computing, self._done) for name, engine in engines.items()}

    async def start(self) -> None:
        """Begin to compute."""
        for batcher in self._batchers.values():
            batcher.start()
        self._tidying = asyncio.get_running_loop().create_task(self._tidy())
        self.is_ready = True

    async def stop(self) -> None:
        """End; what is under way is left."""
        self.is_ready = False
        self._tidying.cancel()
        for batcher in self._batchers.values():
            await batcher.stop()
        for pool in (self._decoding, self._computing, self._head):
            pool.shutdown(wait=False, cancel_futures=True)

    def engine(self, name: str | None) -> Engine:
        """Return the model of a name, the first without one; a name is only ever looked up among those loaded.

        Raises:
            Refused: there is none.
        """
        if name is None:
            return next(iter(self.engines.values()))
        if name not in self.engines:
            raise Refused(422, "no_model", f"model: there is none of this name; there are {', '.join(self.engines)}")
        return self.engines[name]

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """Read a request's body within the limits; it counts as in memory while a block runs."""
        async with body_of(request, self.config.max_bytes, self.bytes) as body:
            yield body

    async def compute(self, engine: Engine, uploads: list[Uploaded], known: Known) -> list[Answered]:
        """Decode photographs and run the network on them; one that cannot be read has an error of its own.

        Raises:
            Refused: too many are waiting.
        """
        with self.photographs.held(len(uploads)):
            tasks = [asyncio.ensure_future(self._compute_one(engine, each, known)) for each in uploads]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()  # where one has failed, or the client has gone

    async def in_head(self, function: Callable[[], Result]) -> Result:
        """Run a head and a field, in a thread of their own: the page does not wait for batches of others.

        Raises:
            Refused: too many are waiting.
        """
        with self.heads.held(1):
            found = await asyncio.get_running_loop().run_in_executor(self._head, function)
            self.heads.finished(1)
            return found

    async def aside(self, function: Callable[[], Result]) -> Result:
        """Run what takes some milliseconds beside the event loop, which goes on meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._decoding, function)

    async def _compute_one(self, engine: Engine, upload: Uploaded, known: Known) -> Answered:
        batcher = self._batchers[engine.name]
        batcher.coming += 1
        self._since_tidy += 1
        try:
            pixels = await self.aside(lambda: engine.pixels(upload.take(), self.config.max_pixels))
        except (BadImage, MemoryError) as error:
            self.metrics.photographs.labels("unreadable").inc()
            return Answered(upload.name, None, str(error) or "there is not enough memory to read it")
        finally:
            batcher.coming -= 1
        try:
            found = await batcher.compute(pixels, known)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise Refused(503, "memory", "there is not enough memory for this photograph; come again", 5) from None
        self.metrics.photographs.labels("computed").inc()
        return Answered(upload.name, found)

    async def _tidy(self) -> None:
        """Give memory back to the system now and then, where there was work."""
        while True:
            await asyncio.sleep(_TIDY_SECONDS)
            if self._since_tidy:
                self._since_tidy = 0
                await asyncio.get_running_loop().run_in_executor(self._head, give_back_memory)

    def _done(self, count: int) -> None:
        self.photographs.finished(count)
        self.metrics.batches.observe(count)


async def unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Await some work; where the client hangs up meanwhile, the work is cancelled.

    The body has to be read by then.

    Raises:
        ClientDisconnect: it has hung up.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await each


async def _gone(request: Request) -> None:
    """Wait until the client hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass

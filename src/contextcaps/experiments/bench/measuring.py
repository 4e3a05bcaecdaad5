"""Time and peak memory of a call, on a GPU or a CPU.

The timing loop is our own. `triton.testing.do_bench` empties the GPU's cache with a tensor of 256 MiB, which would be
counted as memory, and never sees an empty queue; `torch.utils.benchmark` makes two more calls for each timing, which
take seconds on a CPU. It measures the ceilings, for which that does not matter.
"""

import contextlib
import ctypes
import gc
import math
import multiprocessing
import signal
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from contextcaps.training.memory import forget_resident_peak, resident_memory

__all__ = ["Cost", "Memory", "in_own_process", "measure"]

Found = TypeVar("Found")


class Cost(NamedTuple):
    """The cost of a call; the fields are those of `rows.Row`."""

    seconds: float
    least_seconds: float
    repetitions: int
    peak: float


class Memory:
    """Peak of memory since `start`, in bytes, over what was in use before.

    On a GPU what PyTorch's allocator has handed out. On a CPU what the process has resident, whose peak Linux can be
    asked to forget; elsewhere it is not measured.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.held = 0
        """Bytes of tensors that the measured thing holds between calls; to be set before `start`."""
        self._base = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0.0

    def start(self) -> None:
        """Begin to watch the peak. Comes after the warm-up, whose compilers would count on a CPU."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        gc.collect()
        try:
            ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system, as far as it can
            forget_resident_peak()
            self._base = resident_memory("VmRSS") - self.held
        except (OSError, AttributeError, TypeError):
            self._base = math.nan

    def peak(self) -> float:
        """Return the peak in bytes, with what is held."""
        if self.device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self.device) - self._base)
        return math.nan if math.isnan(self._base) else resident_memory("VmHWM") - self._base


def measure(call: Callable[[], Any], memory: Memory, seconds: float, in_a_row: int = 1) -> Cost:
    """Call again and again, for so many seconds after a warm-up.

    Args:
        call: what to measure; whatever it leaves behind is dropped.
        memory: made before anything that the call uses.
        seconds: to spend on it; at least three calls are made, whatever they take, and at most a hundred.
        in_a_row: calls that a GPU is given without waiting for it, as by a training loop; their mean counts. 1 measures
            how long one call takes from an empty queue.
    """
    device = memory.device
    for _ in range(3 if device.type == "cuda" else 1):  # kernels are compiled and chosen; on a CPU pages are touched
        call()
    memory.start()
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < 3 or (time.perf_counter() - began < seconds and len(taken) < 100):
        taken.append(_once(call, device, in_a_row))
    return Cost(statistics.median(taken), min(taken), len(taken), memory.peak())


def _once(call: Callable[[], Any], device: torch.device, in_a_row: int) -> float:
    """Return seconds; on a GPU from events in its queue, which is empty when the first call begins."""
    if device.type != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    torch.cuda.synchronize(device)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(in_a_row):
        call()
    last.record()
    torch.cuda.synchronize(device)
    return first.elapsed_time(last) / 1e3 / in_a_row


def in_own_process(work: Callable[..., Found], *arguments: Any) -> Found:
    """Return `work(*arguments)`, done in a process of its own, as a CPU's memory once used stays with its process.

    The processes are forked from one that has imported everything and computed nothing, so that each starts at once.

    Raises:
        MemoryError: the system ended the process.
        RuntimeError: it died of something else.
    """
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload(["__main__", "contextcaps.experiments.bench.ways"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, work, arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        process.join()
    except BaseException:
        process.terminate()
        raise
    finally:
        process.join()
        receiver.close()
    if process.exitcode == -signal.SIGKILL:
        raise MemoryError("out of memory (the system ended the process)")
    raise RuntimeError(f"the process ended with code {process.exitcode}")


def _send(sender: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    with contextlib.suppress(OSError):  # if memory runs out, this process is the one to go
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with contextlib.suppress(KeyboardInterrupt):  # the parent reports it
        sender.send(work(*arguments))
    sender.close()

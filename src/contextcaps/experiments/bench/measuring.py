"""Time and peak memory of a call, on a GPU or a CPU."""

import contextlib
import ctypes
import dataclasses
import gc
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from contextcaps.training.memory import forget_resident_peak, resident_memory

__all__ = ["Cost", "Memory", "measure", "release", "repeat"]


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a call costs."""

    seconds: float
    """Median over the repetitions."""
    least_seconds: float
    """Of the fastest."""
    repetitions: int
    peak: float
    """Bytes: the most memory that was in use during the calls, with everything that the measured thing holds; NaN
    where it cannot be measured."""


class Memory:
    """Peak of memory since `start`, in bytes, over what was in use at `base`.

    On a GPU what PyTorch's allocator has handed out. On a CPU what the process has resident, whose peak Linux can be
    asked to forget; elsewhere it is not measured.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.held = 0
        self._base = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0.0

    def hold(self, count: int) -> None:
        """Say how many bytes of tensors the measured thing holds between calls."""
        self.held = count

    def start(self) -> None:
        """From here on the peak counts. Comes after the warm-up, whose compilers would count on a CPU."""
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
        """With what is held."""
        if self.device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self.device) - self._base)
        return math.nan if math.isnan(self._base) else resident_memory("VmHWM") - self._base


def measure(call: Callable[[], Any], memory: Memory, seconds: float, in_a_row: int = 1) -> Cost:
    """Call again and again, for so many seconds after a warm-up.

    Args:
        call: what to measure; whatever it leaves behind is dropped.
        memory: made before anything that the call uses.
        seconds: to spend on it; at least three calls are made, whatever they take.
        in_a_row: calls that a GPU is given without waiting for it, as by a training loop; their mean counts. 1 measures
            how long one call takes from an empty queue.
    """
    device = memory.device
    for _ in range(3 if device.type == "cuda" else 1):  # kernels are compiled and chosen; on a CPU pages are touched
        call()
    memory.start()
    taken = repeat(call, device, seconds, warm_up=0, in_a_row=in_a_row)
    return Cost(statistics.median(taken), min(taken), len(taken), memory.peak())


def repeat(
    call: Callable[[], Any],
    device: torch.device,
    seconds: float,
    warm_up: int = 1,
    least: int = 3,
    most: int = 100,
    in_a_row: int = 1,
) -> list[float]:
    """Seconds of each of at least `least` calls, and more until `seconds` are over.

    On a GPU from events in its queue, which is empty when a call begins, or the first of so many `in_a_row`.
    """
    for _ in range(warm_up):
        call()
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < least or (time.perf_counter() - began < seconds and len(taken) < most):
        taken.append(_once(call, device, in_a_row))
    return taken


def release(device: torch.device) -> None:
    """Give back the memory of what was measured before."""
    gc.collect()  # an error's traceback holds tensors, in a circle
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):  # a kernel that failed may have taken the device with it
            torch.cuda.empty_cache()


def _once(call: Callable[[], Any], device: torch.device, in_a_row: int) -> float:
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

"""The machine's own ceilings, measured: how fast it copies memory, multiplies matrices and takes exponentials."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.benchmark import Timer

from contextcaps.experiments.bench.settings import Precision

__all__ = ["Ceilings", "measure_ceilings"]

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """Rates that nothing on this machine exceeds by much."""

    bandwidth: float
    """Bytes read and bytes written, together, in a second of copying a tensor too large for any cache."""
    operations: dict[Precision, float]
    """Operations in a second of multiplying two large square matrices, a multiplication and an addition being two."""
    exponentials: float | None
    """Exponentials in a second, without memory being in the way; None where it could not be measured."""

    def words(self) -> str:
        """Return the rates in one line."""
        rates = ", ".join(f"{name} {_rate(rate, 'FLOP/s')}" for name, rate in self.operations.items())
        exponentials = "not measured" if self.exponentials is None else _rate(self.exponentials, "/s")
        return f"copying {_rate(self.bandwidth, 'B/s')}; matrix products {rates}; exponentials {exponentials}"


def measure_ceilings(device: torch.device, precisions: tuple[Precision, ...], seconds: float = 0.3) -> Ceilings:
    """Measure the ceilings, within a second or two.

    Args:
        device: where.
        precisions: of the matrix products.
        seconds: to spend on each.
    """
    on_gpu = device.type == "cuda"
    numbers = 1 << (28 if on_gpu else 25)
    source, target = (torch.ones(numbers, device=device) for _ in range(2))
    bandwidth = 2 * source.nbytes / _median(functools.partial(target.copy_, source), seconds)

    side = 8192 if on_gpu else 1024
    operations = {}
    for precision in precisions:
        left, right = (torch.randn(side, side, device=device).to(DTYPES[precision]) for _ in range(2))
        product = torch.empty_like(left)
        took = _median(functools.partial(torch.matmul, left, right, out=product), seconds)
        operations[precision] = 2 * side**3 / took
    return Ceilings(bandwidth, operations, _exponentials(device, seconds))


def _exponentials(device: torch.device, seconds: float) -> float | None:
    """Measure on a CPU with numbers that stay in the cache, on a GPU with many in a row in one compiled kernel."""
    if device.type == "cpu":
        values = torch.full((1 << 18,), 0.5)  # 1 MiB
        return values.numel() / _median(lambda: torch.exp(values, out=torch.empty_like(values)), seconds)
    chain = 64

    def chained(values: torch.Tensor) -> torch.Tensor:
        for _ in range(chain):
            values = torch.exp(-values)
        return values

    values = torch.rand(1 << 24, device=device)
    try:
        compiled = torch.compile(chained, dynamic=False)
        return chain * values.numel() / _median(lambda: compiled(values), seconds)
    except Exception:  # whatever the compiler lacks here
        return None


def _median(call: Callable[[], Any], seconds: float) -> float:
    """Return seconds of one call; on a GPU of one of many in a row."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    with torch.no_grad():
        return timer.blocked_autorange(min_run_time=seconds).median


def _rate(value: float, unit: str) -> str:
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}" if unit != "/s" else f"{value / size:.3g} {prefix} {unit}"
    return f"{value / 1e6:.3g} M{unit}"

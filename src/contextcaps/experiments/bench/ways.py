"""The ways to compute a head: eager, compiled, fused, lean. Each becomes a call that can be measured."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from contextcaps.capsules import unchecked
from contextcaps.experiments.bench.ceilings import DTYPES
from contextcaps.experiments.bench.measuring import Cost, Memory, measure, release
from contextcaps.experiments.bench.sizes import Mode, Precision, Size, make_head
from contextcaps.models.head import CapsuleHead

__all__ = ["Case", "Result", "WAYS", "Way", "autocast", "measure_case", "reason_of"]

Way = Literal["eager", "compiled", "fused", "lean"]
WAYS: dict[Way, str] = {"eager": "plain", "compiled": "plain", "fused": "triton", "lean": "lean"}
"""Way → the head's engine: all votes in memory; the same under torch.compile; the kernels; a few votes at a time."""

OUT_OF_MEMORY = "out of memory"


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to measure."""

    head: str
    size: Size
    way: Way
    precision: Precision
    mode: Mode


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of it: a cost, or in a few words why there is none."""

    cost: Cost | None
    resident: int = 0
    """Bytes of weights and inputs, and in a step of their gradients: what every way needs."""
    reason: str = ""


def measure_case(case: Case, device_name: str, seconds: float) -> Result:
    """Measure one way to compute one head; whatever goes wrong is a result, too."""
    device = torch.device(device_name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a compiler says of its own innards
            return _measured(case, device, seconds)
    except Exception as error:  # a compiler or a kernel may fail in any manner, and the other ways are still to come
        return Result(None, reason=reason_of(error))
    finally:
        if case.way == "compiled":
            torch.compiler.reset()  # it keeps the head, otherwise
        release(device)


def _measured(case: Case, device: torch.device, seconds: float) -> Result:
    torch.manual_seed(0)
    size, backend = case.size, WAYS[case.way]
    memory = Memory(device)
    head = make_head(case.head, size, backend, device)
    head.primary.requires_grad_(False)
    capsules = torch.randn(size.batch, size.capsules, size.attributes, device=device) / size.attributes**0.5
    with autocast(device, case.precision):
        _require_backend(head, capsules, backend)
    decide: Callable[[Tensor], Tensor] = head.decide
    if case.way == "compiled":
        decide = torch.compile(head.decide, dynamic=False)

    leaves = [each for each in head.parameters() if each.requires_grad]
    held = sum(each.nbytes for each in (*leaves, capsules))
    # Unchecked, as a network calls its head: looking for NaN makes the CPU wait for the GPU.
    if case.mode == "forward":

        def call() -> None:
            with torch.no_grad(), unchecked(), autocast(device, case.precision):
                decide(capsules)

        resident = held
    else:
        leaves.append(capsules.requires_grad_())
        gradient = torch.randn(size.batch, size.classes, size.decision_attributes, device=device)  # [B, J, I]
        held += gradient.nbytes

        def call() -> None:
            with unchecked(), autocast(device, case.precision):
                decisions = decide(capsules)  # [B, J, I]
            decisions.float().backward(gradient)
            for leaf in leaves:
                leaf.grad = None

        resident = held + sum(each.nbytes for each in leaves)
    memory.hold(held)
    # A training loop does not wait for its GPU; who wants the scores of one batch does.
    return Result(measure(call, memory, seconds, 10 if case.mode == "step" else 1), resident)


def _require_backend(head: CapsuleHead, capsules: Tensor, backend: str) -> None:
    """Refuse what the head would compute in another way than it is asked to."""
    try:
        taken = head.backend_for(capsules)
    except ValueError as error:
        raise ValueError(str(error).rpartition(": ")[2]) from None  # the reason alone
    if taken != backend:
        raise ValueError(f"the head takes {taken} here")


@contextlib.contextmanager
def autocast(device: torch.device, precision: Precision) -> Iterator[None]:
    """The precision's autocast; none for fp32."""
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=DTYPES[precision] is torch.bfloat16):
        yield


def reason_of(error: Exception) -> str:
    """What went wrong, in a line short enough for a table."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "can't allocate memory" in text:
        return OUT_OF_MEMORY
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = lines[0] if isinstance(error, ValueError) and lines else f"{type(error).__name__}: {' '.join(lines[:2])}"
    return told if len(told) <= 160 else f"{told[:157]}…"

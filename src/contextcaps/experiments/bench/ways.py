"""The ways to compute a head: eager, compiled, triton, lean. Each becomes a call that can be measured."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from contextcaps.capsules import unchecked
from contextcaps.engines import EngineName, EngineUnavailableError
from contextcaps.experiments.bench.measuring import Memory, Result, autocast, guarded, measure
from contextcaps.experiments.bench.settings import Mode, Precision
from contextcaps.experiments.bench.sizes import Size, make_head
from contextcaps.models.head import CapsuleHead

__all__ = ["Case", "WAYS", "Way", "measure_case"]

Way = Literal["eager", "compiled", "triton", "lean"]
WAYS: dict[Way, EngineName] = {"eager": "plain", "compiled": "plain", "triton": "triton", "lean": "lean"}
"""Way → the head's engine: all votes in memory; the same under torch.compile; the kernels; a few votes at a time."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to measure."""

    head: str
    size: Size
    way: Way
    precision: Precision
    mode: Mode

    @property
    def batch(self) -> int:
        return self.size.batch

    def words(self) -> str:
        """What tells it from other cases, in one line."""
        size = self.size
        sizes = f"B {size.batch}, K {size.capsules}, J {size.classes}"
        return f"{self.head}, {sizes}, {self.mode}, {self.precision}, {self.way}"


def measure_case(case: Case, device_name: str, seconds: float) -> Result:
    """Measure one way to compute one head."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a compiler says of its own innards
        return guarded(_measured, case, torch.device(device_name), seconds)


def _measured(case: Case, device: torch.device, seconds: float) -> Result:
    try:
        return _measured_head(case, device, seconds)
    finally:
        if case.way == "compiled":
            torch.compiler.reset()  # it keeps the head, otherwise


def _measured_head(case: Case, device: torch.device, seconds: float) -> Result:
    torch.manual_seed(0)
    size, engine = case.size, WAYS[case.way]
    memory = Memory(device)
    head = make_head(case.head, size, engine, device)
    head.primary.requires_grad_(False)
    capsules = torch.randn(size.batch, size.capsules, size.attributes, device=device) / size.attributes**0.5
    with autocast(device, case.precision):
        _require_engine(head, capsules, engine)
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
    memory.held = held
    # A training loop does not wait for its GPU; who wants the scores of one batch does.
    return Result(measure(call, memory, seconds, 10 if case.mode == "step" else 1), resident)


def _require_engine(head: CapsuleHead, capsules: Tensor, engine: EngineName) -> None:
    """Refuse what the head would compute in another way than it is asked to."""
    try:
        taken = head.engine_for(capsules)
    except EngineUnavailableError as error:
        raise ValueError(error.reason) from None
    if taken != engine:
        raise ValueError(f"the head takes {taken} here")

"""Measure a case: a head computed eager, compiled, by triton or lean, or a whole network."""

import contextlib
import gc
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from contextcaps.capsules import unchecked
from contextcaps.engines import EngineName, EngineUnavailableError
from contextcaps.evaluation.predictions import autocast
from contextcaps.experiments.bench.cases import Case, make_head, parse_backbone
from contextcaps.experiments.bench.measuring import Memory, measure
from contextcaps.experiments.bench.rows import Row
from contextcaps.models.head import CapsuleHead
from contextcaps.models.registry import create_model

__all__ = ["WAYS", "measure_case"]

WAYS: dict[str, EngineName] = {"eager": "plain", "compiled": "plain", "triton": "triton", "lean": "lean"}
"""Way → the head's engine: all votes in memory; the same under torch.compile; the kernels; a few votes at a time."""


def measure_case(case: Case, device_name: str, seconds: float) -> Row:
    """Measure a case. An error, such as of a compiler or for want of memory, is a row, too: other cases follow."""
    device = torch.device(device_name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # compilers warn of their own internals
            return _measured(case, device, seconds)
    except Exception as error:
        return Row.failed(case, error)
    finally:
        if case.way == "compiled":
            torch.compiler.reset()  # it keeps the head, otherwise
        gc.collect()  # an error's traceback holds tensors, in a circle
        if device.type == "cuda":
            with contextlib.suppress(RuntimeError):  # a kernel that failed may have taken the device with it
                torch.cuda.empty_cache()


def _measured(case: Case, device: torch.device, seconds: float) -> Row:
    torch.manual_seed(0)
    size, is_step = case.size, case.mode == "step"
    memory = Memory(device)
    module, inputs, forward = (_network if case.backbone else _head)(case, device)
    leaves = [each for each in (*module.parameters(), inputs) if each.requires_grad]
    held = {id(each): each for each in (*leaves, *module.buffers(), inputs)}
    shape = (size.batch, size.classes) if case.backbone else (size.batch, size.classes, size.decision_attributes)
    gradient = torch.randn(shape if is_step else 0, device=device)  # [B, J] or [B, J, I]

    def call() -> None:
        with torch.set_grad_enabled(is_step), autocast(device, case.precision):
            output = forward()
        if is_step:
            output.float().backward(gradient)
            for leaf in leaves:
                leaf.grad = None

    memory.held = sum(each.nbytes for each in (*held.values(), gradient))
    resident = memory.held + (sum(leaf.nbytes for leaf in leaves) if is_step else 0)
    # A training loop does not wait for its GPU; who wants the scores of one batch does.
    in_a_row = 10 if is_step and not case.backbone else 1
    return Row(case, *measure(call, memory, seconds, in_a_row), resident=resident)


def _head(case: Case, device: torch.device) -> tuple[nn.Module, Tensor, Callable[[], Tensor]]:
    """Return a head, its capsules, and the call that gives decisions [B, J, I]."""
    size, engine = case.size, WAYS[case.way]
    try:
        head = make_head(case.model, size, engine, device)
    except EngineUnavailableError as error:
        raise ValueError(error.reason) from None
    head.primary.requires_grad_(False)
    capsules = torch.randn(size.batch, size.capsules, size.attributes, device=device) / size.attributes**0.5
    with autocast(device, case.precision):
        _require_engine(head, capsules, engine)
    capsules.requires_grad_(case.mode == "step")
    decide: Callable[[Tensor], Tensor] = head.decide
    if case.way == "compiled":
        decide = torch.compile(head.decide, dynamic=False)

    def forward() -> Tensor:
        with unchecked():  # as a network calls its head: looking for NaN makes the CPU wait for the GPU
            return decide(capsules)

    return head, capsules, forward


def _network(case: Case, device: torch.device) -> tuple[nn.Module, Tensor, Callable[[], Tensor]]:
    """Return a network, its images, and the call that gives scores [B, J]."""
    backbone, side = parse_backbone(case.backbone)
    network = create_model(case.model, case.size.classes, side, backbone).to(device)
    network.train(case.mode == "step")
    images = torch.rand(case.size.batch, network.config.in_channels, side, side, device=device)
    return network, images, lambda: network(images).scores


def _require_engine(head: CapsuleHead, capsules: Tensor, engine: EngineName) -> None:
    """Refuse what the head would compute in another way than it is asked to."""
    try:
        taken = head.engine_for(capsules)
    except EngineUnavailableError as error:
        raise ValueError(error.reason) from None
    if taken != engine:
        raise ValueError(f"the head takes {taken} here")

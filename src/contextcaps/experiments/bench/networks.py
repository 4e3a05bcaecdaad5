"""Whole networks on the same backbone: what a head costs beside everything else."""

import dataclasses

import torch

from contextcaps.experiments.bench.measuring import Memory, measure, release
from contextcaps.experiments.bench.settings import BACKBONES, Mode, Precision
from contextcaps.experiments.bench.ways import Result, autocast, reason_of
from contextcaps.models.registry import create_model

__all__ = ["NetworkCase", "measure_network", "parse_backbone"]


@dataclasses.dataclass(frozen=True)
class NetworkCase:
    """One network to measure."""

    model: str
    """Name of a preset; its head computes as it would by itself."""
    backbone: str
    image_size: int
    classes: int
    batch: int
    precision: Precision
    mode: Mode


def parse_backbone(text: str) -> tuple[str, int]:
    """`small@64` as a backbone's name and a side in pixels.

    >>> parse_backbone("timm:resnet18@224")
    ('timm:resnet18', 224)
    """
    name, _, side = text.rpartition("@")
    if not name or not side.isdecimal():
        raise ValueError(f"backbones: expected NAME@PIXELS such as {BACKBONES[0]}, got {text!r}")
    return name, int(side)


def measure_network(case: NetworkCase, device_name: str, seconds: float) -> Result:
    """A forward pass or a training step of a whole network; whatever goes wrong is a result, too."""
    device = torch.device(device_name)
    try:
        return _measured(case, device, seconds)
    except Exception as error:  # such as a package that is missing, or memory; the other networks are still to come
        return Result(None, reason=reason_of(error))
    finally:
        release(device)


def _measured(case: NetworkCase, device: torch.device, seconds: float) -> Result:
    torch.manual_seed(0)
    memory = Memory(device)
    network = create_model(case.model, case.classes, case.image_size, case.backbone).to(device)
    network.train(case.mode == "step")
    images = torch.rand(case.batch, network.config.in_channels, case.image_size, case.image_size, device=device)
    weights = list(network.parameters())
    held = sum(each.nbytes for each in (*weights, *network.buffers(), images))
    resident = held + (sum(each.nbytes for each in weights) if case.mode == "step" else 0)
    memory.hold(held)

    def forward() -> None:
        with torch.no_grad(), autocast(device, case.precision):
            network(images)

    def step() -> None:
        with autocast(device, case.precision):
            scores = network(images).scores  # [B, J]
        scores.float().square().sum().backward()
        network.zero_grad(set_to_none=True)

    return Result(measure(forward if case.mode == "forward" else step, memory, seconds), resident)

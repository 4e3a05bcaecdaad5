"""Whole networks on the same backbone: what a head costs beside everything else."""

import dataclasses

import torch

from contextcaps.experiments.bench.measuring import Memory, Result, autocast, guarded, measure
from contextcaps.experiments.bench.settings import BACKBONES, Mode, Precision
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

    def words(self) -> str:
        """All of it that is not the same for every network."""
        return f"{self.model} on {self.backbone}, {self.mode}, {self.precision}"


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
    """Measure a forward pass or a training step of a whole network."""
    return guarded(_measured, case, torch.device(device_name), seconds)


def _measured(case: NetworkCase, device: torch.device, seconds: float) -> Result:
    torch.manual_seed(0)
    memory = Memory(device)
    network = create_model(case.model, case.classes, case.image_size, case.backbone).to(device)
    network.train(case.mode == "step")
    images = torch.rand(case.batch, network.config.in_channels, case.image_size, case.image_size, device=device)
    weights = list(network.parameters())
    memory.held = sum(each.nbytes for each in (*weights, *network.buffers(), images))
    gradients = sum(each.nbytes for each in weights) if case.mode == "step" else 0

    def forward() -> None:
        with torch.no_grad(), autocast(device, case.precision):
            network(images)

    def step() -> None:
        with autocast(device, case.precision):
            scores = network(images).scores  # [B, J]
        scores.float().square().sum().backward()
        network.zero_grad(set_to_none=True)

    cost = measure(forward if case.mode == "forward" else step, memory, seconds)
    return Result(cost, memory.held + gradients)

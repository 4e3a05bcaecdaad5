"""The cases of the benchmark: which head or network, of which size, computed in which way."""

import dataclasses
from typing import Any

import torch

from contextcaps.experiments.bench.settings import BACKBONES, Axis, Mode, Precision
from contextcaps.models.config import ModelConfig
from contextcaps.models.head import CapsuleHead
from contextcaps.models.registry import model_config

__all__ = ["AXES", "HEADS", "SIZES", "Case", "Size", "head_config", "make_head", "parse_backbone"]

AXES: dict[Axis, str] = {"B": "batch", "K": "capsules", "J": "classes"}
"""Letter → field of `Size`."""


@dataclasses.dataclass(frozen=True)
class Size:
    """One size of the head, from its primary capsules on."""

    name: str = "paper"
    batch: int = 128
    """B."""
    capsules: int = 1152
    """K."""
    attributes: int = 8
    """A, of a primary capsule."""
    classes: int = 150
    """J."""
    decision_attributes: int = 16
    """I, of a decision capsule."""
    crf_rank: int | None = None
    """Rank of the pairwise matrix; None for a full one."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), 2 if field.name == "classes" else 1
            if isinstance(value, int) and value < least:
                raise ValueError(f"{field.name}: expected a whole number of at least {least}, got {value}")

    @property
    def side(self) -> int:
        """N, the side of the grid: the largest up to the paper's 6 whose square divides K."""
        return max(side for side in range(1, 7) if self.capsules % side**2 == 0)

    @property
    def types(self) -> int:
        """D, so that K = N · N · D."""
        return self.capsules // self.side**2

    @property
    def votes(self) -> int:
        """Numbers in the votes, B · K · J · I."""
        return self.batch * self.capsules * self.classes * self.decision_attributes

    def along(self, axis: Axis, value: int) -> "Size":
        """Return the same size with another B, K or J."""
        changes: dict[str, Any] = {AXES[axis]: value}
        return dataclasses.replace(self, **changes)

    def words(self) -> str:
        """Return the size in one line, without its name."""
        rank = "" if self.crf_rank is None else f", CRF of rank {self.crf_rank}"
        return (
            f"B {self.batch}, K {self.capsules}, A {self.attributes}, J {self.classes}, I {self.decision_attributes}"
            f"{rank}"
        )


SIZES: dict[str, Size] = {
    "paper": Size("paper"),
    "small": Size("small", batch=16),
    "one": Size("one", batch=1),
    "j1000": Size("j1000", classes=1000),
    "j5000": Size("j5000", batch=32, classes=5000, crf_rank=32),
    "tiny": Size("tiny", batch=2, capsules=16, attributes=4, classes=5, decision_attributes=4),
}
"""By name: the paper's head; the same for a CPU; for one image; for many classes; and one that takes no time."""

HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "capsnet": ("capsnet", {}),
    "capsnet-rw-crf": ("capsnet-rw-crf", {}),
    "capsnet-rw-crf-corr": ("capsnet-rw-crf-corr", {}),
    "capsnet-rw-crf-corr-joined": (
        "capsnet-rw-crf-corr",
        {"routing": {}, "initial_routing": {"mode": "couplings"}},
    ),
}
"""Name → preset and its changed options; in the last one the correlation module joins the routing. The head of
contextcaps is that of capsnet: its field between decisions comes after it, and is not measured."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to measure: a head computed in one way, or a whole network."""

    model: str
    """One of `HEADS`; of a whole network the preset."""
    size: Size
    """Sizes of the head; a whole network takes its batch and its classes alone."""
    way: str
    """One of `ways.WAYS`; "auto" for a whole network, whose head chooses."""
    precision: Precision
    mode: Mode
    backbone: str = ""
    """NAME@PIXELS of a whole network; empty for a head alone."""

    def words(self) -> str:
        """Return what tells it from other cases, in one line."""
        size, backbone = self.size, f" on {self.backbone}" if self.backbone else ""
        sizes = f"B {size.batch}, K {size.capsules}, J {size.classes}"
        return f"{self.model}{backbone}, {sizes}, {self.mode}, {self.precision}, {self.way}"


def parse_backbone(text: str) -> tuple[str, int]:
    """Return the backbone's name and the side in pixels that NAME@PIXELS stands for.

    >>> parse_backbone("timm:resnet18@224")
    ('timm:resnet18', 224)
    """
    name, _, side = text.rpartition("@")
    if not name or not side.isdecimal():
        raise ValueError(f"backbones: expected NAME@PIXELS such as {BACKBONES[0]}, got {text!r}")
    return name, int(side)


def head_config(name: str, size: Size, **overrides: Any) -> ModelConfig:
    """Return the configuration of a head (one of `HEADS`) of this size."""
    preset, settings = HEADS[name]
    own = {"types": size.types, "attributes": size.attributes, "decision_attributes": size.decision_attributes}
    config = model_config(preset, size.classes, 28, "paper", capsules=own, **{**settings, **overrides})
    if config.crf is None:
        return config
    return dataclasses.replace(config, crf=dataclasses.replace(config.crf, rank=size.crf_rank))


def make_head(name: str, size: Size, engine: str, device: torch.device | str) -> CapsuleHead:
    """Build a head of this size, on the device. Its primary convolution is a token one, as it is not measured."""
    with torch.device(device):
        return CapsuleHead(head_config(name, size, engine=engine), 1, (1, 1, 0), (size.side, size.side))

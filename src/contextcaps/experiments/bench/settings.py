"""The settings of the benchmark: one dataclass, from which the command line's flags are made."""

import dataclasses
from typing import Annotated, Literal

import tyro

__all__ = ["BACKBONES", "MODES", "Axis", "BenchSettings", "Mode", "Precision"]

Mode = Literal["forward", "step"]
"""The forward pass alone, without gradients; or a training step: forward and backward."""
MODES: dict[Mode, str] = {"forward": "forward pass", "step": "training step"}
"""Mode → its name in tables."""
Precision = Literal["fp32", "bf16"]
"""fp32 throughout; or weights in fp32 and bf16 by autocast."""
Axis = Literal["B", "K", "J"]
"""What a sweep varies."""
BACKBONES = ("small@64", "timm:resnet18@224")
"""Backbone and side of the images in pixels."""


@dataclasses.dataclass(frozen=True)
class BenchSettings:
    """Settings of the benchmark. Empty ones are chosen by the device: much on a GPU, two minutes' worth on a CPU."""

    sizes: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SIZE...")] = ()
    """paper, small (for a CPU), one (a single image), j1000, j5000 or tiny; by default paper on a GPU, else small."""
    heads: Annotated[tuple[str, ...], tyro.conf.arg(metavar="HEAD...")] = ()
    """capsnet, capsnet-rw-crf, capsnet-rw-crf-corr, capsnet-rw-crf-corr-joined (CORR joins routing);
    by default all on a GPU, capsnet and capsnet-rw-crf-corr on a CPU."""
    ways: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WAY...")] = ()
    """eager, compiled, triton, lean; by default all."""
    precisions: Annotated[tuple[Precision, ...], tyro.conf.arg(metavar="{fp32,bf16}...")] = ()
    """By default both on a GPU, fp32 on a CPU."""
    modes: Annotated[tuple[Mode, ...], tyro.conf.arg(metavar="{forward,step}...")] = ("forward", "step")
    """The forward pass alone, without gradients, or a training step, forward and backward."""
    batch: Annotated[int | None, tyro.conf.arg(metavar="B")] = None
    """B, in the place of the sizes' own."""
    capsules: Annotated[int | None, tyro.conf.arg(metavar="K")] = None
    """K, in the place of the sizes' own."""
    classes: Annotated[int | None, tyro.conf.arg(metavar="J")] = None
    """J, in the place of the sizes' own."""
    crf_rank: Annotated[int | None, tyro.conf.arg(metavar="RANK")] = None
    """Rank of the CRF's pairwise matrix, in the place of the sizes' own."""
    sweep: Annotated[tuple[Axis, ...], tyro.conf.arg(metavar="{B,K,J}...")] = ()
    """Vary these of the first size, by powers of two, and draw how the costs grow."""
    points: int = 5
    """Sizes along a sweep."""
    networks: Annotated[tuple[str, ...], tyro.conf.arg(metavar="MODEL...")] = ()
    """Presets to measure as whole networks, too, such as capsnet contextcaps."""
    backbones: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME@PIXELS...")] = BACKBONES
    """Backbones of these networks, each with the side of the images in pixels."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""
    seconds: float = 1.0
    """Seconds to spend on each measurement, at least; three repetitions are made in any case."""

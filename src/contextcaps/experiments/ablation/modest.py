"""Drawn scenes on a CPU: as small as the demo's, so that an ablation of a few runs takes minutes."""

import torch

from contextcaps.experiments.demo_settings import DemoSettings
from contextcaps.training.config import TrainConfig

__all__ = ["modest_defaults", "modest_scenes"]

_IMAGES = 2000


def modest_scenes(image_size: int) -> str:
    """Few scenes, drawn at the size they are used at."""
    return f"scenes?count={_IMAGES}&size={min(max(image_size, 32), 256)}"


def modest_defaults(data: str | None, accelerator: str | None) -> tuple[TrainConfig, bool]:
    """What flags of the command line override, and whether it is the small form.

    Args:
        data: what --data says; only plain scenes are made small.
        accelerator: what --accelerator says; a GPU needs no small form.
    """
    on_cpu = accelerator == "cpu" or not torch.cuda.is_available()
    if data not in (None, "scenes") or not on_cpu:
        return TrainConfig(out="runs/ablation"), False
    demo = DemoSettings()
    return TrainConfig(
        data=modest_scenes(demo.image_size),
        out="runs/ablation",
        options={"capsules.types": demo.types},
        image_size=demo.image_size,
        backbone="small",
        batch_size=demo.batch_size,
        lr=demo.lr,
    ), True

"""Settings small enough for a CPU: drawn scenes of 32 px, of which a training takes minutes on two cores."""

import dataclasses

from contextcaps.training.config import TrainConfig

__all__ = ["SMALL_TRAINING", "ablation_defaults", "small_scenes"]

SMALL_TRAINING = TrainConfig(
    image_size=32,
    backbone="small",
    batch_size=32,
    lr=2e-3,
    options={"capsules.types": 4},  # the presets' 16 take three times as long on a CPU
)
"""How to train on few small scenes; the data are to be named beside it."""
_IMAGES = 2000


def small_scenes(image_size: int, count: int = _IMAGES, split: str | None = None) -> str:
    """Name a source of few scenes, drawn at the size they are used at.

    >>> small_scenes(32, 500, "test")
    'scenes?split=test&count=500&size=32'
    """
    part = "" if split is None else f"split={split}&"
    return f"scenes?{part}count={count}&size={min(max(image_size, 32), 256)}"


def ablation_defaults(data: str | None, accelerator: str | None, start: str | None = None) -> TrainConfig | None:
    """Return the small defaults of an ablation if they apply: plain scenes on a CPU.

    Args:
        data: what --data says, if anything.
        accelerator: what --accelerator says, if anything; a GPU needs no small form.
        start: what --from says, if anything; backbone and image size are then that model's.
    """
    import torch  # here, as the command line asks for help without it

    on_cpu = accelerator == "cpu" or not torch.cuda.is_available()
    if data not in (None, "scenes") or not on_cpu:
        return None
    return SMALL_TRAINING if start is None else dataclasses.replace(SMALL_TRAINING, image_size=None, backbone="auto")

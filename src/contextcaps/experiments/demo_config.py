"""The configuration of the demo, and the ablation that it is."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from contextcaps.experiments.ablation.config import AblateConfig
from contextcaps.experiments.small_scenes import SMALL_TRAINING, small_scenes

__all__ = ["MODELS", "DemoConfig"]

MODELS = ("capsnet", "contextcaps")
"""What is compared; the last one tags the images."""


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """Everything that the demo depends on. As it stands, some minutes on two cores."""

    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs/demo")
    """Where runs, tables and pictures go; what a demo has finished there is used again."""
    seed: int = 0
    """Seed of everything that is random in training, and of the choice of the six images."""
    photographs: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILES...")] = ()
    """Your own photographs to tag first: files, folders or patterns. By default six that other packages bring."""
    cache: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder for prepared copies, instead of the user's cache."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """No progress, only the results."""

    images: Annotated[int, tyro.conf.Suppress] = 3000
    """Training images."""
    validation_images: Annotated[int, tyro.conf.Suppress] = 500
    test_images: Annotated[int, tyro.conf.Suppress] = 1000
    epochs: Annotated[int, tyro.conf.Suppress] = 8
    tagged: Annotated[int, tyro.conf.Suppress] = 6
    """Test images on the page of tagged images."""
    tagged_size: Annotated[int, tyro.conf.Suppress] = 192
    """Side in pixels at which they are drawn."""

    def ablation(self) -> AblateConfig:
        """Return the ablation that the demo is."""
        side = SMALL_TRAINING.side
        return AblateConfig(
            models=MODELS,
            seeds=1,
            test_data=small_scenes(side, self.test_images, "test"),
            train=dataclasses.replace(
                SMALL_TRAINING,
                data=small_scenes(side, self.images, "train"),
                val_data=small_scenes(side, self.validation_images, "validation"),
                out=str(self.out / "scenes"),  # an ablation wants a folder of its own
                cache=None if self.cache is None else str(self.cache),
                seed=self.seed,
                epochs=self.epochs,
                accelerator="cpu",  # where the same seed gives the same bits
                precision="fp32",
            ),
        )

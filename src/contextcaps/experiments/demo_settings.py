"""How large the demo is, and the commands that do the same step by step."""

import dataclasses
import shlex
from pathlib import Path

from contextcaps.models import model_config
from contextcaps.training.config import TrainConfig, spell_options
from contextcaps.training.losses import settled_loss

__all__ = ["MODELS", "DemoSettings", "commands_of", "train_words"]

MODELS = ("capsnet", "contextcaps")
"""What is compared; the last one tags the images."""


@dataclasses.dataclass(frozen=True)
class DemoSettings:
    """How large the demo is; the same for both networks. As it stands, some minutes on two cores."""

    image_size: int = 32
    """Side of the images in pixels."""
    images: int = 3000
    """Of the training part."""
    validation_images: int = 500
    test_images: int = 1000
    epochs: int = 8
    batch_size: int = 32
    lr: float = 2e-3
    types: int = 4
    """D, capsule types in each grid cell; the presets' 16 take three times as long on a CPU."""
    seed: int = 0
    """Of everything that is random, but for the scenes themselves."""
    tagged: int = 6
    """Test images in the picture of tagged images."""
    tagged_size: int = 192
    """Side at which they are drawn."""
    resamples: int | None = None
    """Of the bootstrap; by default as many as `contextcaps evaluate` takes."""

    def source(self, split: str, count: int) -> str:
        """The name of a part of the data."""
        return f"scenes?split={split}&count={count}&size={self.image_size}"

    @property
    def test_data(self) -> str:
        return self.source("test", self.test_images)

    def config(self, model: str, out: Path, cache: Path | str | None = None) -> TrainConfig:
        """The configuration of one network's run."""
        return TrainConfig(
            data=self.source("train", self.images),
            val_data=self.source("validation", self.validation_images),
            model=model,
            options={"capsules.types": self.types},
            out=str(out),
            cache=None if cache is None else str(cache),
            seed=self.seed,
            image_size=self.image_size,
            backbone="small",
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            loss=settled_loss("auto", model_config(model, 2)),
            accelerator="cpu",  # where the same seed gives the same bits
            precision="fp32",
        )


def commands_of(folder: Path, settings: DemoSettings) -> tuple[str, ...]:
    """That make the runs and their reports again, in another folder."""
    again = folder.with_name(folder.name + "-again")
    seed = [] if settings.seed == 0 else ["--seed", str(settings.seed)]
    commands = []
    if settings == DemoSettings(seed=settings.seed):  # those that the command has no flags for are as they were
        commands.append(shlex.join(["contextcaps", "demo", "--out", str(again), *seed]))
    for model in MODELS:
        out = folder.with_name(f"{folder.name}-{model}")
        commands.append(shlex.join(["contextcaps", "train", *train_words(settings.config(model, out))]))
        resamples = [] if settings.resamples is None else ["--resamples", str(settings.resamples)]
        words = [str(out), "--data", settings.test_data, "--accelerator", "cpu", "--seed", str(settings.seed)]
        commands.append(shlex.join(["contextcaps", "evaluate", *words, *resamples]))
    return tuple(commands)


def train_words(config: TrainConfig) -> list[str]:
    """The words of `contextcaps train` that give a configuration: those fields that differ from the defaults."""
    words: list[str] = []
    for field in dataclasses.fields(config):
        value, default = getattr(config, field.name), getattr(TrainConfig(), field.name)
        flag = f"--{field.name.replace('_', '-')}"
        if value == default and field.name not in ("data", "model"):
            continue
        if field.name == "options":
            words += ["--set", *spell_options(value)]
        elif isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            words += [flag, str(value)]
    return words

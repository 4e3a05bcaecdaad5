"""contextcaps ablate."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro
from typing_extensions import Self

from contextcaps.cli.command import Command, CommandConsole, Flag, Number, asks_for_help, require_location, value_of
from contextcaps.training.config import TrainConfig

__all__ = ["Ablate"]


@dataclasses.dataclass(frozen=True)
class Ablate(Command):
    """Train several models with several seeds alike, and compare them on a page.

    Division of the data, schedule and budget are the same for all.

    Stopped or killed, the same command goes on; models and seeds can be added.

    Plain scenes on a CPU are few and small, with other defaults than those below.
    """

    models: Annotated[tuple[str, ...], tyro.conf.arg(metavar="A,B,…")] = ("capsnet,contextcaps",)
    """PRESET, PRESET:NAME=VALUE,… or LABEL=PRESET:NAME=VALUE,…; the first is the baseline."""
    seeds: int = 5
    """Runs of each model, with seeds from --seed on."""
    tries: int = 1
    """Points of hyper-parameters for each model, chosen from on the validation part; 1 for no search."""
    try_epochs: Number = None
    """Epochs of each try; by default all, as fewer favour high learning rates."""
    try_lr: tuple[float, ...] = (1.0, 0.333333, 3.0)
    """Factors of the learning rate to try."""
    try_losses: tuple[str, ...] = ("margin", "bce", "asl")
    """Losses to try."""
    baseline: Annotated[str | None, tyro.conf.arg(metavar="MODEL")] = None
    """The model that differences are taken from; by default the first."""
    test_data: Annotated[str | None, tyro.conf.arg(metavar="SOURCE")] = None
    """Another source to test on, instead of the test part of the data."""
    at_once: Annotated[str, tyro.conf.arg(metavar="N|auto")] = "auto"
    """Runs at the same time; auto: as many as fit on a GPU, at most 4, and 1 on a CPU."""
    resamples: Number = None
    """Resamples of the bootstrap over test images."""
    report_only: Flag = False
    """Write the report of what is finished in --out, and train nothing."""
    quiet: Flag = False
    """No progress, only the results."""
    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=lambda: TrainConfig(out="runs/ablation")
    )
    """How to train; the same for all."""
    small: Annotated[TrainConfig | None, tyro.conf.Suppress] = None
    """The small defaults of plain scenes on a CPU, where they hold."""

    @classmethod
    def defaults(cls, words: Sequence[str]) -> Self | None:
        if value_of("--model", words) is not None:
            raise ValueError("--model: name the models with --models, with commas between them")
        if asks_for_help(words):
            return None
        from contextcaps.experiments.ablation.modest import modest_defaults

        config, is_small = modest_defaults(value_of("--data", words), value_of("--accelerator", words))
        return cls(config=config, small=config) if is_small else None

    def run(self) -> None:
        from contextcaps.experiments.ablation import ablate, show_ablation
        from contextcaps.experiments.ablation.modest import modest_scenes

        if self.at_once != "auto" and not self.at_once.isdecimal():
            raise ValueError(f"at_once: expected a whole number of at least 1, or auto, got {self.at_once!r}")
        config = self.config
        require_location(config.data, config.val_data, self.test_data)
        if self.small is not None:
            config = dataclasses.replace(config, options={**self.small.options, **config.options})
            if not self.report_only:
                config = dataclasses.replace(config, data=modest_scenes(config.image_size))
                if not self.quiet:
                    print(f"scenes on a CPU are kept few and small: --data '{config.data}'", file=sys.stderr)
        ablation = ablate(
            **self.keywords("config", "small", "at_once", "quiet"),
            config=config,
            at_once=None if self.at_once == "auto" else int(self.at_once),
            progress=not self.quiet,
        )
        show_ablation(ablation, CommandConsole())
        if ablation.failures:
            count = len(ablation.failures)
            raise OSError(f"{count} run{'s' if count != 1 else ''} failed; the same command tries again")

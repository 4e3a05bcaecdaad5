"""contextcaps ablate."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro
from typing_extensions import Self

from contextcaps.cli.command import Command, CommandConsole, Flag, asks_for_help, require_location, value_of
from contextcaps.experiments.ablation.config import AblateConfig
from contextcaps.experiments.small_scenes import ablation_defaults, small_scenes
from contextcaps.training.config import TrainConfig

__all__ = ["Ablate"]


@dataclasses.dataclass(frozen=True)
class Ablate(Command):
    """Train several models with several seeds alike, and compare them on a page.

    Division of the data, schedule and budget are the same for all.

    Stopped or killed, the same command goes on; models and seeds can be added.

    Plain scenes on a CPU are few and small, with other defaults than those below.
    """

    config: Annotated[AblateConfig, tyro.conf.arg(name="")] = dataclasses.field(default_factory=AblateConfig)
    """What to train, and how."""
    quiet: Flag = False
    """No progress, only the results."""
    small: Annotated[TrainConfig | None, tyro.conf.Suppress] = None
    """The small defaults of plain scenes on a CPU, where they hold."""

    @classmethod
    def defaults(cls, words: Sequence[str]) -> Self | None:
        if value_of("--model", words) is not None:
            raise ValueError("--model: name the models with --models, with commas between them")
        if asks_for_help(words):
            return None
        small = ablation_defaults(*(value_of(flag, words) for flag in ("--data", "--accelerator", "--from")))
        if small is None:
            return None
        small = dataclasses.replace(small, out=AblateConfig().train.out)
        return cls(config=AblateConfig(train=small), small=small)

    def run(self) -> None:
        from contextcaps.experiments.ablation.ablation import ablate, show_ablation
        from contextcaps.training.starting import starting_model, with_starting_model

        train = self.config.train
        require_location(train.data, train.val_data, self.config.test_data)
        if self.small is not None:
            train = dataclasses.replace(train, options={**self.small.options, **train.options})
            if not self.config.report_only:
                side = with_starting_model(train, starting_model(train)).side
                train = dataclasses.replace(train, data=small_scenes(side))
                if not self.quiet:
                    print(f"scenes on a CPU are kept few and small: --data '{train.data}'", file=sys.stderr)
        ablation = ablate(dataclasses.replace(self.config, train=train), progress=not self.quiet)
        show_ablation(ablation, CommandConsole())
        ablation.require_success()

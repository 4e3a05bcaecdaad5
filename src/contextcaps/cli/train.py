"""contextcaps train."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from typing_extensions import Self

from contextcaps.cli.command import Command, CommandConsole, File, Flag, require_location, value_of
from contextcaps.documents import count, facts_table, percent
from contextcaps.rank_zero import is_rank_zero
from contextcaps.training.config import TrainConfig

if TYPE_CHECKING:
    from contextcaps.training.trainer import TrainingResult

__all__ = ["Train"]

_WITH_RESUME = ("--resume", "--data", "--val-data", "--val_data", "--quiet", "-h", "--help")


@dataclasses.dataclass(frozen=True)
class Train(Command):
    """Train a network on a source, or go on with a run that was stopped.

    Everything about a training is kept in one folder, the run.

    Flags override the YAML file of --config, which overrides the defaults.

    Ctrl-C stops after the step and saves.
    """

    config: File = None
    """A YAML file with any of the fields below, such as a run's config.yaml."""
    resume: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """Go on with a run that was stopped, killed or failed. Takes everything from it; --data and
    --val-data say where the data are now, if they have moved."""
    quiet: Flag = False
    """No progress, only the summary."""
    training: Annotated[TrainConfig, tyro.conf.arg(name="")] = dataclasses.field(default_factory=TrainConfig)
    """How to train."""

    @classmethod
    def defaults(cls, words: Sequence[str]) -> Self:
        if value_of("--resume", words) is not None:
            flags = [word.partition("=")[0] for word in words if word.startswith("-")]
            others = [flag for flag in flags if flag not in _WITH_RESUME]
            if others:
                raise ValueError(f"--resume takes everything but --data from the run; leave out {' '.join(others)}")
        file = value_of("--config", words)
        return cls() if file is None else cls(training=_read(Path(file)))

    def run(self) -> None:
        from contextcaps.training.trainer import resume, train

        if self.resume is not None:
            default = TrainConfig()
            moved = self.training.data if self.training.data != default.data else None
            result = resume(self.resume, data=moved, val_data=self.training.val_data, progress=not self.quiet)
        else:
            require_location(self.training.data, self.training.val_data)
            of_file = {} if self.config is None else _read(self.config).options
            config = dataclasses.replace(self.training, options={**of_file, **self.training.options})
            result = train(config, progress=not self.quiet)
        if is_rank_zero():
            _summarise(result)


def _read(file: Path) -> TrainConfig:
    if not file.is_file():
        raise ValueError(f"--config {file}: no such file; expected YAML with fields of the configuration")
    try:
        return TrainConfig.from_yaml(file)
    except ValueError as error:
        raise ValueError(f"--config {error}") from None


def _summarise(result: "TrainingResult") -> None:
    """Print the end of a training in a table, and the commands that come next."""
    console, best = CommandConsole(), result.best
    facts = {
        "epochs": f"{len(result.history)}, the best is {best['epoch']:.0f}",
        "validation mAP": f"{percent(best['val_mAP'], 2)} %; the constant prior, the same scores for every image, has "
        f"{percent(best['prior_mAP'], 2)} %",
        "micro, sample AP": f"{percent(best['val_micro_AP'], 2)} %, {percent(best['val_samples_AP'], 2)} %",
        "loss": f"{best['train_loss']:.3f} in training, {best['val_loss']:.3f} in validation",
        "weights": count(result.parameters),
        "model": result.model,
        "curves": result.folder / "curves.png",
    }
    facts_table(facts, f"Run {result.folder}").print(console)
    console.print(f"contextcaps evaluate {result.folder}", highlight=False)
    console.print(f"contextcaps tag IMAGES... --model {result.folder}", highlight=False)

"""The configuration of an ablation: one dataclass, from which the command line's flags are made."""

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from contextcaps.configuration import Configuration
from contextcaps.training.config import TrainConfig, spell_options

__all__ = ["AblateConfig", "ablate_command"]

DEFAULT_FOLDER = "runs/ablation"


def _parse_at_once(words: list[str]) -> int | None:
    if words[0] == "auto":
        return None
    if not words[0].isdecimal():
        raise ValueError(f"at_once: expected a whole number of at least 1, or auto, got {words[0]!r}")
    return int(words[0])


_AtOnceWord = tyro.constructors.PrimitiveConstructorSpec[int | None](
    nargs=1,
    metavar="N|auto",
    instance_from_str=_parse_at_once,
    is_instance=lambda value: value is None or isinstance(value, int),
    str_from_instance=lambda value: ["auto" if value is None else str(value)],
)


@dataclasses.dataclass(frozen=True)
class AblateConfig(Configuration):
    """Everything that an ablation depends on: its models and seeds, and how all of them are trained.

    What is wrong with single models is said by the plan that is made of it, `Plan.from_config`.
    """

    _title: ClassVar[str] = "an ablation's configuration"

    models: Annotated[tuple[str, ...], tyro.conf.arg(metavar="A,B,…")] = ("capsnet,contextcaps",)
    """PRESET, PRESET:NAME=VALUE,… or LABEL=PRESET:NAME=VALUE,… with commas between; the first is the baseline. Names
    are those of `ModelConfig`, or loss, lr, weight_decay, class_weights, clip, ema, reconstruction, known, backbone,
    hidden_labels."""
    seeds: int = 5
    """Runs of each model, with seeds from --seed on."""
    tries: int = 1
    """Points of hyper-parameters to try for each model on the validation part; 1 for no search."""
    try_epochs: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Epochs of each try; by default all, as fewer favour high learning rates."""
    try_lr: tuple[float, ...] = (1.0, 1 / 3, 3.0)
    """Factors of the learning rate to try."""
    try_losses: tuple[str, ...] = ("margin", "bce", "asl")
    """Losses to try."""
    baseline: Annotated[str | None, tyro.conf.arg(metavar="MODEL")] = None
    """The label that differences are taken from; by default the first model's."""
    test_data: Annotated[str | None, tyro.conf.arg(metavar="SOURCE")] = None
    """Another source to test on, instead of the test part of the data."""
    at_once: Annotated[int | None, _AtOnceWord] = None
    """Runs at the same time; auto: as many as fit on a GPU, at most 4, and 1 on a CPU."""
    resamples: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Resamples of the bootstrap over test images; by default as many as `contextcaps evaluate` takes."""
    report_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Write the report of what is finished in --out, and train nothing."""
    train: Annotated[TrainConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=lambda: TrainConfig(out=DEFAULT_FOLDER)
    )
    """How to train; the same for all models. Its `out` is the ablation's folder."""

    def __post_init__(self) -> None:
        if isinstance(self.models, str):
            self._set(models=(self.models,))
        self._settle_kinds()
        if self.seeds < 1:
            raise ValueError(f"seeds: expected a whole number of at least 1, got {self.seeds}")
        if self.at_once is not None and self.at_once < 1:
            raise ValueError(f"at_once: expected a whole number of at least 1, or auto, got {self.at_once}")
        for name in ("tries", "try_epochs"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}: expected a whole number of at least 1, got {getattr(self, name)}")

    @classmethod
    def from_settings(cls, config: "AblateConfig | None" = None, **settings: Any) -> "AblateConfig":
        """Replace fields of a configuration, or of the default one, by fields of this class and of `TrainConfig`."""
        own = {field.name for field in dataclasses.fields(cls)}
        values = {} if config is None else {name: getattr(config, name) for name in own}
        values |= {name: value for name, value in settings.items() if name in own}
        train = values.pop("train", TrainConfig(out=DEFAULT_FOLDER))
        changes = {name: value for name, value in settings.items() if name not in own}
        return cls.from_dict({**values, "train": TrainConfig.from_dict({**train.to_dict(), **changes})})

    @property
    def folder(self) -> Path:
        """The ablation's folder."""
        return Path(self.train.out or DEFAULT_FOLDER).expanduser()


def ablate_command(config: AblateConfig) -> str:
    """Spell the command that an ablation is: those fields that differ from the defaults."""
    return shlex.join(["contextcaps", "ablate", *_flags(config, AblateConfig())])


def _flags(config: Configuration, defaults: Configuration, prefix: str = "--") -> list[str]:
    words: list[str] = []
    for field in dataclasses.fields(config):
        value, default = getattr(config, field.name), getattr(defaults, field.name)
        flag = f"{prefix}{field.name.replace('_', '-')}"
        if value == default:
            continue
        if field.name == "options":
            words += ["--set", *spell_options(value)]
        elif isinstance(value, Configuration):
            words += _flags(value, default, prefix if field.name == "train" else f"{flag}.")
        elif isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, tuple):
            words += [flag, *map(str, value)]
        else:
            words += [flag, str(value)]
    return words

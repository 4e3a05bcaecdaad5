"""The plan of an ablation: which models, which seeds, and what is the same for all of them."""

import dataclasses
import json
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contextcaps.atomic import write_atomically
from contextcaps.experiments.ablation.config import AblateConfig
from contextcaps.models import ModelConfig, list_models, model_config
from contextcaps.models.registry import require_buildable
from contextcaps.training.config import TrainConfig, spell_options
from contextcaps.training.losses import LOSSES
from contextcaps.training.resolved import network_config
from contextcaps.training.runs import RunError
from contextcaps.yaml_files import parse_yaml

__all__ = ["Entry", "Plan", "check_run", "parse_models", "plan_file"]

_TRAINING = (
    *("backbone", "loss", "lr", "weight_decay", "class_weights", "clip", "ema", "reconstruction", "known"),
    "hidden_labels",
)
"""Fields of the training that an entry may set; the budget and the data are the same for all."""
_PLACES = ("out", "cache", "workers", "checkpoint_minutes", "checkpoint_steps", "log_steps")
"""Fields that change nothing about a result."""
_LABEL = re.compile(r"[\w.+=-]+")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One model of the grid: a preset, and what is set differently."""

    label: str
    """What it is called in tables, and its folder."""
    preset: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of `ModelConfig`, dotted those of its sections: `{"crf.rank": 32}`."""
    training: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of `TrainConfig`, such as the loss."""

    @property
    def settings(self) -> str:
        """All settings in words; empty for the plain preset."""
        return ", ".join(spell_options({**self.options, **self.training}))


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that an ablation's results depend on."""

    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    base: TrainConfig
    """What all runs share; its model, seed and out say nothing."""
    baseline: str
    """The label that differences are taken from."""
    tries: int = 1
    """Points of hyper-parameters for each model; 1 for none but what was given."""
    try_epochs: int = 1
    """Epochs of each try."""
    try_lr: tuple[float, ...] = (1.0, 1 / 3, 3.0)
    """Factors of the learning rate to try."""
    try_losses: tuple[str, ...] = ("margin", "bce", "asl")
    """Losses to try, besides a model's own."""
    test_data: str | None = None
    """Another source to test on; by default the test part of the data."""

    def __post_init__(self) -> None:
        labels = [entry.label for entry in self.entries]
        if not labels:
            raise ValueError("models: expected at least one")
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"models: {label} is there more than once; name one of them: NAME={label}:…")
        if self.baseline not in labels:
            raise ValueError(f"baseline: expected one of {', '.join(labels)}, got {self.baseline!r}")
        if not self.seeds:
            raise ValueError("seeds: expected at least 1, got 0")
        for name in ("tries", "try_epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected a whole number of at least 1, got {getattr(self, name)}")
        if not self.try_lr or min(self.try_lr) <= 0:
            raise ValueError(f"try_lr: expected factors above 0, got {self.try_lr}")
        for loss in self.try_losses:
            if loss not in LOSSES:
                raise ValueError(f"try_losses: expected some of {', '.join(LOSSES)}, got {loss!r}")
        if self.base.devices * self.base.nodes > 1:
            raise ValueError("devices, nodes: expected 1 each: an ablation runs several trainings, each in one process")
        if self.base.val_data is not None and self.test_data is None:
            raise ValueError("val_data: what is validated on is no test; name a source for that, too: --test-data")
        if self.base.val_data is not None and self.test_data == self.base.data:
            raise ValueError(
                f"test_data: expected another source than the training's beside --val-data, got {self.test_data}; to "
                "test on a part of it, name that: ?split=…"
            )
        for entry in self.entries:  # what is wrong with one is said before any is trained
            self._check(entry)
        used = {name for entry in self.entries for name in self._shared_options(entry)}
        for name in self.base.options:
            section = name.partition(".")[0]
            if name not in used and section != "capsules":  # the defaults for a CPU name types for baseline heads, too
                raise ValueError(f"set: {name}: none of the models has {section}")

    @classmethod
    def from_config(cls, config: AblateConfig) -> "Plan":
        """Make the plan that a configuration asks for."""
        entries = parse_models(config.models)
        return cls(
            entries=entries,
            seeds=tuple(range(config.train.seed, config.train.seed + config.seeds)),
            base=dataclasses.replace(config.train, out=None, model=entries[0].preset),
            baseline=entries[0].label if config.baseline is None else config.baseline,
            tries=config.tries,
            try_epochs=config.train.epochs if config.try_epochs is None else config.try_epochs,
            try_lr=config.try_lr,
            try_losses=config.try_losses,
            test_data=config.test_data,
        )

    def _check(self, entry: Entry) -> None:
        try:
            config = self.config(entry, self.seeds[0], None)
            require_buildable(network_config(config, ("one", "other")), published=config.start_from is None)
        except ValueError as error:
            raise ValueError(f"models: {entry.label}: {error}") from None

    def config(self, entry: Entry, seed: int, out: Path | None, **changes: Any) -> TrainConfig:
        """Return the configuration of one run."""
        split_seed = self.base.seed if self.base.split_seed is None else self.base.split_seed
        settings = {
            "model": entry.preset,
            "options": {**self._shared_options(entry), **entry.options},
            "seed": seed,
            "split_seed": split_seed,
            "val_as_test": True,
            "out": None if out is None else str(out),
            **entry.training,
            **changes,
        }
        return dataclasses.replace(self.base, **settings)

    def _shared_options(self, entry: Entry) -> dict[str, Any]:
        """Return those options of all models that concern one: not those of a module that it does not have."""
        shared = self.base.options
        whole = {name: value for name, value in shared.items() if "." not in name}
        backbone = entry.training.get("backbone", self.base.backbone)
        own = model_config(entry.preset, 2, self.base.side, backbone, **{**whole, **entry.options})
        absent = {name for name, value in own.to_dict().items() if value is None}
        return {name: value for name, value in shared.items() if name in whole or name.partition(".")[0] not in absent}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "models": [dataclasses.asdict(entry) for entry in self.entries],
            "seeds": list(self.seeds),
            "baseline": self.baseline,
            "tries": self.tries,
            "try_epochs": self.try_epochs,
            "try_lr": list(self.try_lr),
            "try_losses": list(self.try_losses),
            "test_data": self.test_data,
            "training": self.base.to_dict(),
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> "Plan":
        """Build the plan from what `to_dict` gave."""
        return cls(
            entries=tuple(Entry(**entry) for entry in document["models"]),
            seeds=tuple(document["seeds"]),
            base=TrainConfig.from_dict(document["training"]),
            baseline=document["baseline"],
            tries=document["tries"],
            try_epochs=document["try_epochs"],
            try_lr=tuple(document["try_lr"]),
            try_losses=tuple(document["try_losses"]),
            test_data=document["test_data"],
        )

    def write(self, folder: Path, **facts: Any) -> None:
        """Keep the plan in the ablation's folder, with facts such as the command."""
        document = {**self.to_dict(), **facts}
        write_atomically(plan_file(folder), json.dumps(document, indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, folder: Path) -> tuple["Plan", dict[str, Any]]:
        """Read the plan in a folder, and all that is written there with it."""
        path = plan_file(folder)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return cls.from_dict(document), document
        except FileNotFoundError:
            raise RunError(
                f"{folder}: no ablation: it has no grid.json; expected a folder made by `contextcaps ablate`"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}: damaged or not written by contextcaps ({error})") from None

    def differences(self, other: "Plan") -> list[str]:
        """List the settings that make results of the other plan useless for this one; more models or seeds do not."""
        found = []
        for name in ("tries", "try_epochs", "try_lr", "try_losses", "test_data"):
            if name.startswith("try_") and self.tries == other.tries == 1:
                continue
            found += _difference(name, getattr(self, name), getattr(other, name))
        for field in dataclasses.fields(TrainConfig):
            if field.name not in (*_PLACES, "model"):
                found += _difference(field.name, getattr(self.base, field.name), getattr(other.base, field.name))
        known = {entry.label: entry for entry in other.entries}
        for entry in self.entries:
            if entry.label in known and entry != known[entry.label]:
                found += _difference(entry.label, _spelled(entry), _spelled(known[entry.label]))
        return found


def plan_file(folder: Path) -> Path:
    """Return the file in which an ablation keeps its plan."""
    return Path(folder, "grid.json")


def check_run(wanted: TrainConfig, found: TrainConfig) -> None:
    """Refuse a run that is there already with other settings."""
    for field in dataclasses.fields(TrainConfig):
        ours, theirs = getattr(wanted, field.name), getattr(found, field.name)
        if field.name in _PLACES or ours == "auto" or ours == theirs:  # auto: resolved when the run began
            continue
        raise RunError(
            f"{wanted.out}: holds a run with other settings ({field.name}: {theirs}, not {ours}); choose another "
            "folder with --out, or remove this one"
        )


def parse_models(words: str | Sequence[str]) -> tuple[Entry, ...]:
    """Parse models with their settings: PRESET, PRESET:NAME=VALUE,… or LABEL=PRESET:NAME=VALUE,…, with commas between.

    Without a loss of its own, a model is trained with the margin loss on lengths, or cross-entropy on sigmoids.

    >>> [entry.label for entry in parse_models("capsnet,narrow=contextcaps:capsules.types=8,crf.rank=4,capsnet-rw")]
    ['capsnet', 'narrow', 'capsnet-rw']
    """
    pieces: list[list[str]] = []
    for word in [words] if isinstance(words, str) else words:
        open_entry = False  # whether the piece before has settings, to which more may be added
        for piece in word.split(","):
            _, equals, rest = piece.strip().partition("=")
            if open_entry and equals and ":" not in rest and rest not in list_models():
                pieces[-1].append(piece.strip())
                continue
            if not piece.strip():
                raise ValueError(f"models: expected names with commas between, got {word!r}")
            pieces.append([piece.strip()])
            open_entry = ":" in piece
    if not pieces:
        raise ValueError("models: expected names with commas between, got none")
    return tuple(_entry(piece) for piece in pieces)


def _entry(pieces: list[str]) -> Entry:
    text = ",".join(pieces)
    head, _, first = pieces[0].partition(":")
    label, equals, preset = head.partition("=")
    if not equals:
        label, preset = "", head
    if preset not in list_models():
        model_config(preset, 2)  # says what is wrong, with the nearest name
    options: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for setting in [first, *pieces[1:]] if first or len(pieces) > 1 else []:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise ValueError(f"models: {text}: expected NAME=VALUE, got {setting!r}")
        try:
            parsed = parse_yaml(value)
        except ValueError as error:
            raise ValueError(f"models: {text}: {setting}: {error}") from None
        if name in _TRAINING:
            training[name] = parsed
        elif name in typing.get_type_hints(TrainConfig) and name not in typing.get_type_hints(ModelConfig):
            raise ValueError(f"models: {text}: {name} is the same for all models; it has a flag of its own")
        else:
            options[name] = parsed
    if not label:
        label = "-".join([preset, *(piece for piece in [first, *pieces[1:]] if piece)])
        label = re.sub(r"[^\w.+=-]", "_", label)
    if not _LABEL.fullmatch(label) or label.startswith("."):
        raise ValueError(f"models: {text}: expected letters, digits, . + - _ in the name, got {label!r}")
    return Entry(label, preset, options, training)


def _spelled(entry: Entry) -> str:
    return f"{entry.preset}:{entry.settings}" if entry.settings else entry.preset


def _difference(name: str, ours: Any, theirs: Any) -> list[str]:
    return [] if ours == theirs else [f"{name}: {theirs}, now {ours}"]

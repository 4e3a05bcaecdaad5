"""Hyper-parameters for each model, chosen on the validation part, with the same number of tries for all."""

import dataclasses
import itertools
import math
import random
import shutil
from pathlib import Path
from typing import Any

from contextcaps.atomic import write_atomically
from contextcaps.experiments.ablation.grid import Entry, Plan
from contextcaps.experiments.ablation.results import read_epochs
from contextcaps.experiments.ablation.worker import has_diverged, is_trained
from contextcaps.training.config import TrainConfig
from contextcaps.training.losses import resolve_loss
from contextcaps.training.resolved import network_config
from contextcaps.training.runs import Run, RunError

__all__ = ["Choice", "Try", "adopt", "choose", "choice_of", "points", "try_config", "try_folder"]


@dataclasses.dataclass(frozen=True)
class Try:
    """One point of hyper-parameters, and its validation mAP."""

    number: int
    """From 1."""
    settings: dict[str, Any]
    """Fields of `TrainConfig`."""
    mAP: float
    """The best on the validation part; NaN if it failed."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The hyper-parameters that a model is trained with."""

    label: str
    settings: dict[str, Any]
    tries: tuple[Try, ...]
    """None where there was nothing to choose from."""
    number: int = 0
    """Number of the try that was taken, or 0."""


def points(plan: Plan, entry: Entry) -> list[dict[str, Any]]:
    """Return the points that a model is tried at.

    All models have the same list of (factor of the learning rate, number of the loss) in the same order, in which a
    model's own settings come first and the seed deals the rest; loss number 0 is the model's own.
    """
    own = plan.config(entry, plan.seeds[0], None)
    losses = _losses(plan, entry)
    factors = list(dict.fromkeys([1.0, *plan.try_lr]))
    most = len(losses)
    everything = list(itertools.product(factors, range(most)))
    rest = everything[1:]
    random.Random(plan.base.seed).shuffle(rest)
    dealt = [everything[0], *rest]
    if plan.tries > len(dealt):
        raise ValueError(
            f"tries: expected at most {len(dealt)}, as there are {len(factors)} learning rates and {most} losses to "
            f"try, got {plan.tries}; name more with --try-lr or --try-losses"
        )
    return [{"lr": float(f"{own.lr * factor:.6g}"), "loss": losses[number]} for factor, number in dealt[: plan.tries]]


def _losses(plan: Plan, entry: Entry) -> list[str]:
    """Return a model's own loss, then the others to try: as many for every model, whichever its own is."""
    config = plan.config(entry, plan.seeds[0], None)
    own = resolve_loss(config.loss, network_config(config, ("one", "other")))
    wanted = [*plan.try_losses] if plan.base.loss == "auto" else [plan.base.loss, *plan.try_losses]
    usual = ("margin", "bce") if plan.base.loss == "auto" else (plan.base.loss,)  # of models that name none
    most = min(len({each, *wanted}) for each in usual)
    return list(dict.fromkeys([own, *wanted, "margin", "bce", "asl"]))[:most]


def try_folder(out: Path, entry: Entry, number: int) -> Path:
    """Return the folder of one try."""
    return out / "tries" / entry.label / f"try-{number}"


def try_config(plan: Plan, entry: Entry, number: int, out: Path) -> TrainConfig:
    """Return the configuration of one try: the first seed, and as many epochs as tries have, all of the schedule."""
    settings = points(plan, entry)[number - 1]
    return plan.config(entry, plan.seeds[0], try_folder(out, entry, number), epochs=plan.try_epochs, **settings)


def choose(plan: Plan, entry: Entry, out: Path) -> Choice:
    """Choose the point with the highest validation mAP, the first of several.

    Raises:
        RunError: all tries diverged, or one has neither been trained to its end nor diverged: chosen without it,
            the model would have had fewer tries than the others.
    """
    if plan.tries == 1:
        return Choice(entry.label, {}, ())
    tries = _read_tries(plan, entry, out)
    known = [each for each in tries if math.isfinite(each.mAP)]
    others = [each.number for each in tries if each not in known]
    left = [str(number) for number in others if not has_diverged(try_folder(out, entry, number))]
    if left:
        which = f"try {left[0]} has" if len(left) == 1 else f"tries {', '.join(left)} have"
        raise RunError(
            f"{entry.label}: {which} not come to an end, so that nothing is chosen; see the logs in "
            f"{out / 'tries' / entry.label}"
        )
    if not known:
        raise RunError(
            f"{entry.label}: all of its {len(tries)} tries diverged; see the logs in {out / 'tries' / entry.label}"
        )
    best = max(known, key=lambda each: (each.mAP, -each.number))
    return Choice(entry.label, best.settings, tries, best.number)


def choice_of(plan: Plan, entry: Entry, out: Path, config: TrainConfig) -> Choice:
    """Return what a run was trained with, by its own configuration, beside the tries that are there."""
    if plan.tries == 1:
        return Choice(entry.label, {}, ())
    tries = _read_tries(plan, entry, out)
    settings = {"lr": config.lr, "loss": config.loss}
    taken = next((each.number for each in tries if each.settings == settings), 0)
    return Choice(entry.label, settings, tries, taken)


def _read_tries(plan: Plan, entry: Entry, out: Path) -> tuple[Try, ...]:
    tries = []
    for number, settings in enumerate(points(plan, entry), 1):
        folder, reached = try_folder(out, entry, number), math.nan
        if is_trained(folder):  # one that broke off may have had good epochs before, but is no choice
            history = read_epochs(folder)
            reached = max((each["val_mAP"] for each in history if math.isfinite(each["val_mAP"])), default=math.nan)
        tries.append(Try(number, settings, reached))
    return tuple(tries)


def adopt(plan: Plan, entry: Entry, chosen: Choice, out: Path, place: Path) -> None:
    """Copy the chosen try to where the first seed's run belongs: where it had all epochs, it is that run."""
    if not chosen.number or plan.try_epochs != plan.base.epochs or place.exists():
        return
    unfinished = place.with_name(f".{place.name}.copy")
    shutil.rmtree(unfinished, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    origin = try_folder(out, entry, chosen.number)
    shutil.copytree(origin, unfinished)
    run = Run.open(unfinished)
    run.record(adopted=str(origin.relative_to(out)))
    write_atomically(unfinished / "config.yaml", dataclasses.replace(run.config, out=str(place)).to_yaml())
    # Beside how many others it ran is said there.
    order = origin.with_name(f"{origin.name}.json")
    if order.exists():
        shutil.copy(order, place.with_name(f"{place.name}.json"))
    unfinished.rename(place)

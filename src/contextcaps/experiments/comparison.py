"""Finished runs side by side, measured on the same images, and whether one is better than another."""

import csv
import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from contextcaps.evaluation.evaluate import Measured
from contextcaps.evaluation.metrics import basic_interval, bootstrap_mean_average_precision
from contextcaps.evaluation.report import Evaluation
from contextcaps.evaluation.report.evaluation import Estimate, plain
from contextcaps.evaluation.report.wording import number_text
from contextcaps.training.runs import Run, RunError

__all__ = ["ComparedRun", "Comparison", "Difference", "compare", "read_epochs", "read_history"]


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """One run in a comparison."""

    name: str
    """Of the row, such as the model's."""
    folder: Path
    evaluation: Evaluation
    history: tuple[dict[str, float], ...]
    """One record per epoch."""
    best_epoch: int
    """The epoch whose weights were measured."""
    parameters: int
    """Weights of the network."""
    seconds: float
    """All epochs with their validations; NaN where they were not timed."""
    images_per_second: float
    """Training images, in this time."""
    seed: int


@dataclasses.dataclass(frozen=True)
class Difference:
    """How much higher the test mAP of one run is than that of another."""

    run: str
    baseline: str
    mAP: Estimate
    """Its interval comes from a paired bootstrap: both runs are measured on the same resampled images."""

    @property
    def is_shown(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.mAP.low > 0 or self.mAP.high < 0

    def sentence(self) -> str:
        """What the figures show, and no more."""
        if not all(map(math.isfinite, dataclasses.astuple(self.mAP))):
            return f"The difference of mAP between {self.run} and {self.baseline} is undefined on these images."
        value, low, high = (_signed(each) for each in (self.mAP.value, self.mAP.low, self.mAP.high))
        which = f"{self.run} − {self.baseline}: {value} points of mAP, paired 95 % interval [{low}, {high}]"
        if not self.is_shown:
            return f"No difference is shown. {which}, which includes 0."
        ahead = self.run if self.mAP.value > 0 else self.baseline
        return f"{ahead} is ahead on these test images. {which}."


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Several runs on the same images; the first is the baseline of the others."""

    runs: tuple[ComparedRun, ...]
    differences: tuple[Difference, ...]
    """Of each other run from the first."""

    @property
    def images(self) -> int:
        return self.runs[0].evaluation.images

    @property
    def seed_text(self) -> str:
        """The runs' seeds in words."""
        return ", ".join(map(str, sorted({run.seed for run in self.runs})))

    def findings(self) -> list[str]:
        """What the comparison shows, in sentences; how far it can be trusted is one of them."""
        both = {run.name: run.evaluation.metrics["mAP"] for run in self.runs}
        times = [f"{name} {number_text(each.model.value / each.prior.value, 1)}" for name, each in both.items()]
        return [
            f"Test mAP in multiples of the constant prior's: {', '.join(times)}.",
            *(each.sentence() for each in self.differences),
            f"One training of each (seed {self.seed_text}): the intervals tell what other test images would change, "
            "not what another seed would.",
        ]

    def to_dict(self) -> dict[str, Any]:
        """As plain lists, dictionaries and numbers, for JSON; None in place of what is not defined."""
        document = {
            "images": self.images,
            "runs": [_run_document(run) for run in self.runs],
            "differences": [dataclasses.asdict(each) for each in self.differences],
            "findings": self.findings(),
        }
        return plain(document)


def compare(measured: Mapping[str, Measured], folders: Mapping[str, Path], resamples: int | None = None) -> Comparison:
    """Compare finished runs that were measured on the same images.

    Args:
        measured: name → what `contextcaps.evaluate` gave for the run; the first is the baseline of the others.
        folders: name → the run's.
        resamples: of the paired bootstrap; by default as many as in the evaluations.

    Raises:
        ValueError: the runs were not measured on the same images, or one of them is not finished.
    """
    first = next(iter(measured), None)
    if first is None:
        raise ValueError("measured: expected at least one run")
    samples = {}
    for name, each in measured.items():
        for what in ("targets", "indices"):
            if not torch.equal(getattr(each.predictions, what), getattr(measured[first].predictions, what)):
                raise ValueError(f"{name}: was measured on other images than {first}; evaluate both on the same data")
        evaluation = measured[first].evaluation  # the same seed for all, so that their resamples are the same images
        samples[name] = bootstrap_mean_average_precision(
            each.predictions.scores,
            each.predictions.targets,
            resamples=resamples or evaluation.resamples,
            seed=evaluation.seed,
        )  # [R]
    differences = []
    for name in list(measured)[1:]:
        value, baseline = (measured[each].evaluation.metrics["mAP"].model.value for each in (name, first))
        drawn = samples[name] - samples[first]  # [R]
        interval = basic_interval(drawn, value - baseline)
        differences.append(Difference(name, first, Estimate(value - baseline, *interval)))
    runs = tuple(_compared(name, Path(folders[name]), each.evaluation) for name, each in measured.items())
    return Comparison(runs, tuple(differences))


def read_history(folder: Path) -> tuple[dict[str, float], ...]:
    """A run's metrics.csv: one record per epoch."""
    path = folder / "metrics.csv"
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return tuple({name: float(value) for name, value in row.items()} for row in csv.DictReader(file))
    except FileNotFoundError:
        raise RunError(
            f"{folder}: no epoch of this run is finished; go on with it: contextcaps train --resume {folder}"
        ) from None
    except (ValueError, TypeError):
        raise RunError(f"{path}: damaged; write it anew with: contextcaps train --resume {folder}") from None


def read_epochs(folder: Path) -> tuple[dict[str, float], ...]:
    """The records of a finished run's metrics.csv, at least one; an error that says what to remove if they are lost."""
    try:
        history = read_history(folder)
    except RunError:
        history = ()
    if not history or "val_mAP" not in history[0]:
        raise RunError(f"{folder / 'metrics.csv'}: damaged; remove {folder} and run again")
    return history


def _signed(share: float) -> str:
    """In percent, with a sign that cannot be taken for a hyphen."""
    return f"{100 * share:+.1f}".replace("-", "−")


def _compared(name: str, folder: Path, evaluation: Evaluation) -> ComparedRun:
    run = Run.open(folder)
    if "parameters" not in run.facts:
        raise RunError(f"{folder}: its run.json is lost or damaged; write it anew: contextcaps train --resume {folder}")
    history = read_history(folder)
    best = max(history, key=lambda record: -math.inf if math.isnan(record["val_mAP"]) else record["val_mAP"])
    seconds, images = _timing(folder / "timing.csv")
    return ComparedRun(
        name=name,
        folder=folder,
        evaluation=evaluation,
        history=history,
        best_epoch=int(best["epoch"]),
        parameters=int(run.facts["parameters"]),
        seconds=seconds,
        images_per_second=images / seconds if seconds > 0 else math.nan,
        seed=run.config.seed,
    )


def _timing(path: Path) -> tuple[float, int]:
    """Seconds and images of all epochs; what a killed process did after its last checkpoint is not in them."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return sum(float(row["seconds_with_validation"]) for row in rows), sum(int(row["images"]) for row in rows)
    except (OSError, KeyError, ValueError, TypeError):
        return math.nan, 0


def _run_document(run: ComparedRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "folder": str(run.folder),
        "seed": run.seed,
        "parameters": run.parameters,
        "epochs": len(run.history),
        "best_epoch": run.best_epoch,
        "seconds": round(run.seconds, 2),
        "images_per_second": round(run.images_per_second, 1),
        "metrics": run.evaluation.to_dict()["metrics"],
        "history": list(run.history),
    }

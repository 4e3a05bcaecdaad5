"""The results of an ablation's finished runs, read from their folders."""

import csv
import dataclasses
import json
import math
import statistics
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from contextcaps.evaluation.report.evaluation import Estimate
from contextcaps.experiments.ablation.worker import PREDICTIONS
from contextcaps.training.config import TrainConfig
from contextcaps.training.losses import resolve_loss
from contextcaps.training.resolved import network_config
from contextcaps.training.runs import Run, RunError

__all__ = ["RunResult", "Tested", "read_epochs", "read_result", "run_folder", "runs_beside"]


@dataclasses.dataclass(frozen=True)
class Tested:
    """A run's scores of every test image, and the true labels."""

    scores: np.ndarray
    """[n, J], float32."""
    targets: np.ndarray
    """[n, J], uint8."""
    indices: np.ndarray
    """[n]."""
    classes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class RunResult:
    """One finished run."""

    label: str
    seed: int
    folder: Path
    metrics: dict[str, float]
    """On the test images: mAP, micro_AP, …; NaN where one is not defined."""
    prior: dict[str, float]
    """The same of the constant prior."""
    image_interval: Estimate
    """Interval of the mAP, from the bootstrap over test images."""
    class_precision: dict[str, float]
    """Class → average precision; NaN without a positive."""
    frequencies: dict[str, float]
    """Class → share of the training images."""
    history: tuple[dict[str, float], ...]
    """One record per epoch."""
    parameters: int
    seconds_per_image: float
    """Seconds of training, without validation; the median over the epochs, without the first if there are more."""
    seconds: float
    """Seconds of all epochs, with validations."""
    config: TrainConfig
    """What it was trained with."""
    facts: dict[str, Any]
    """What run.json says."""
    batch: int
    """Images per step."""
    beside: int
    """Other runs of the grid on the same machine when it began."""

    @property
    def loss(self) -> str:
        """The loss it was trained with, by name, also where the model's kind decided."""
        return resolve_loss(self.config.loss, network_config(self.config, ("one", "other")))

    def tested(self) -> Tested:
        """Read its scores from the disk."""
        try:
            with np.load(self.folder / PREDICTIONS, allow_pickle=False) as file:
                return Tested(file["scores"], file["targets"], file["indices"], tuple(file["classes"].tolist()))
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise RunError(f"{self.folder / PREDICTIONS}: damaged ({error}); remove it and run again") from None


def run_folder(out: Path, label: str, seed: int) -> Path:
    """Return the folder of one run of the grid."""
    return out / "runs" / label / f"seed-{seed}"


def read_result(out: Path, label: str, seed: int) -> RunResult:
    """Read what a finished run says.

    Raises:
        RunError: one of its files is lost or damaged.
    """
    folder = run_folder(out, label, seed)
    run = Run.open(folder)
    path = folder / "evaluation" / "test" / "evaluation.json"
    try:
        evaluation = json.loads(path.read_text(encoding="utf-8"))
        metrics = {name: _number(each["model"]["value"]) for name, each in evaluation["metrics"].items()}
        prior = {name: _number(each["prior"]["value"]) for name, each in evaluation["metrics"].items()}
        interval = Estimate(**{name: _number(value) for name, value in evaluation["metrics"]["mAP"]["model"].items()})
        precision = {each["name"]: _number(each["average_precision"]) for each in evaluation["classes"]}
        trained = json.loads((folder / "model" / "trained.json").read_text(encoding="utf-8"))
        frequencies = {name: _number(value) for name, value in trained["frequencies"].items()}
        parameters = int(run.facts["parameters"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{folder}: a file of the run is lost or damaged ({error!r}); remove {PREDICTIONS} there and run again"
        ) from None
    history = read_epochs(folder)
    seconds_per_image, seconds = _timing(folder / "timing.csv")
    return RunResult(
        label=label,
        seed=seed,
        folder=folder,
        metrics=metrics,
        prior=prior,
        image_interval=interval,
        class_precision=precision,
        frequencies=frequencies,
        history=history,
        parameters=parameters,
        seconds_per_image=seconds_per_image,
        seconds=seconds,
        config=run.config,
        facts=run.facts,
        batch=run.config.batch_size * run.config.accumulate * int(run.facts.get("processes", 1)),
        beside=runs_beside(folder),
    )


def read_epochs(folder: Path) -> tuple[dict[str, float], ...]:
    """Read the records of a finished run's metrics.csv, one for each epoch, at least one.

    Raises:
        RunError: they are lost or damaged.
    """
    path = folder / "metrics.csv"
    try:
        with open(path, encoding="utf-8", newline="") as file:
            history = tuple({name: float(value) for name, value in row.items()} for row in csv.DictReader(file))
    except (OSError, ValueError, TypeError):
        history = ()
    if not history or "val_mAP" not in history[0]:
        raise RunError(f"{path}: damaged; remove {folder} and run again")
    return history


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _timing(path: Path) -> tuple[float, float]:
    """Return the seconds for one training image, and of all epochs."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        each = [float(row["training_seconds"]) / int(row["images"]) for row in rows if int(row["images"])]
        warm = each[1:] or each  # the first epoch also waits for what is done once
        return statistics.median(warm), sum(float(row["seconds_with_validation"]) for row in rows)
    except (OSError, KeyError, ValueError, TypeError, statistics.StatisticsError):
        return math.nan, math.nan


def runs_beside(folder: Path) -> int:
    """Return how many other runs shared the device with one; 0 where nothing says so."""
    try:
        return int(json.loads(folder.with_name(f"{folder.name}.json").read_text(encoding="utf-8"))["beside"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0

"""An ablation's results: the paper's table and figure, cost, and the classes that gain, from the run folders alone."""

import dataclasses
import math
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contextcaps.evaluation.metrics import basic_interval, bootstrap_mean_average_precision
from contextcaps.evaluation.report.evaluation import Estimate
from contextcaps.experiments.ablation.choosing import Choice, choice_of
from contextcaps.experiments.ablation.grid import Entry, Plan
from contextcaps.experiments.ablation.results import RunResult, Tested, read_result, run_folder
from contextcaps.experiments.ablation.statistics import (
    Spread,
    difference_interval,
    epoch_within,
    mean_interval,
    pool_deviations,
)
from contextcaps.experiments.ablation.worker import is_finished
from contextcaps.training.config import TrainConfig
from contextcaps.training.runs import RunError

__all__ = ["ClassGain", "ModelReport", "NothingFinished", "Pair", "Report", "make_report"]

_WITHIN = 0.01
_LEAST_SEEDS = 3


class NothingFinished(RunError):
    """There is nothing to report yet."""


@dataclasses.dataclass(frozen=True)
class ClassGain:
    """The gain in average precision of one class over the baseline."""

    name: str
    gain: Estimate
    """The interval is Welch's over seeds, NaN with a single one."""
    frequency: float
    """Share of the training images that show the class."""
    positives: int
    """Test images that show it."""
    company: float
    """Other classes in a test image that shows it, on average."""


@dataclasses.dataclass(frozen=True)
class ModelReport:
    """One model over its seeds."""

    entry: Entry
    runs: tuple[RunResult, ...]
    mAP: Estimate
    """The mean over seeds; its interval is that over seeds, or with a single one that over test images."""
    metrics: dict[str, Estimate]
    """Every metric: mean and interval over seeds."""
    difference: Estimate | None
    """To the baseline, over their common seeds; None for the baseline, interval NaN with a single common seed."""
    image_difference: Estimate | None
    """The same mean difference with the interval of a paired bootstrap over test images, all seeds in each resample."""
    pairs: int
    """Seeds that the differences come from."""
    epochs_within: tuple[int, ...]
    """Each seed's first epoch within 1 % of its final validation mAP."""
    gains: tuple[ClassGain, ...]
    choice: Choice
    is_baseline: bool

    @property
    def label(self) -> str:
        return self.entry.label

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)

    @property
    def class_intervals(self) -> bool:
        """Whether there are seeds enough for an interval of each class: one over two reaches beyond any frame."""
        return self.pairs >= _LEAST_SEEDS

    @property
    def deciding(self) -> Estimate | None:
        """The difference that the verdict goes by: that over seeds, or with a single one that over test images."""
        return self.image_difference if self.pairs == 1 else self.difference

    @property
    def verdict(self) -> str:
        """The verdict on the difference: better, worse, not shown, or why there is none."""
        deciding = self.deciding
        if deciding is None:
            return "baseline" if self.is_baseline else "no pair"
        if not all(map(math.isfinite, dataclasses.astuple(deciding))):
            return "undefined"
        return "better" if deciding.low > 0 else "worse" if deciding.high < 0 else "not shown"

    def cost(self) -> dict[str, float]:
        """Return weights, ms per step, images per second, bytes of memory and seconds of training: means over runs."""
        per_image = _mean([run.seconds_per_image for run in self.runs])
        memory = [(run.facts.get("memory") or {}).get("bytes") or math.nan for run in self.runs]
        return {
            "parameters": self.runs[0].parameters,
            "step_milliseconds": 1e3 * per_image * self.runs[0].batch,
            "images_per_second": 1 / per_image if per_image > 0 else math.nan,
            "peak_memory_bytes": max(memory, key=lambda each: -1 if math.isnan(each) else each),
            "seconds": _mean([run.seconds for run in self.runs]),
        }

    def mean_history(self) -> list[dict[str, float]]:
        """Return validation mAP by epoch, the mean over seeds, with the constant prior's."""
        epochs = min(len(run.history) for run in self.runs)
        return [
            {
                "epoch": number + 1,
                "val_mAP": _mean([run.history[number]["val_mAP"] for run in self.runs]),
                "prior_mAP": _mean([run.history[number].get("prior_mAP", math.nan) for run in self.runs]),
            }
            for number in range(epochs)
        ]

    def band(self) -> list[tuple[float, float, float]]:
        """Return (epoch, lowest, highest) validation mAP over seeds; none with a single one."""
        if len(self.runs) == 1:
            return []
        found: list[tuple[float, float, float]] = []
        for number in range(min(len(run.history) for run in self.runs)):
            values = [run.history[number]["val_mAP"] for run in self.runs]
            if all(map(math.isfinite, values)):
                found.append((number + 1, min(values), max(values)))
        return found


@dataclasses.dataclass(frozen=True)
class Pair:
    """The difference of mAP between two models."""

    label: str
    other: str
    difference: Estimate
    """Over common seeds; the interval is NaN with a single one."""
    seeds: int

    @property
    def is_shown(self) -> bool:
        """Whether the interval over seeds leaves out zero."""
        return self.difference.low > 0 or self.difference.high < 0


@dataclasses.dataclass(frozen=True)
class Report:
    """All results of an ablation."""

    plan: Plan
    document: dict[str, Any]
    """What grid.json says: plan, command, when it began."""
    models: tuple[ModelReport, ...]
    missing: tuple[str, ...]
    """Runs of the plan that are not finished, such as "capsnet, seed 2"."""
    images: int
    """Images of the test part."""
    classes: int
    resamples: int
    spread: Spread | None
    """The deviation from seed to seed, pooled over the models; None with a single seed."""

    def pairs(self) -> list[Pair]:
        """Return each ordered pair of models that have a seed in common."""
        found = []
        for model, other in permutations(self.models, 2):
            ours, theirs = ({run.seed: run.metrics["mAP"] for run in each.runs} for each in (model, other))
            common = sorted(ours.keys() & theirs.keys())
            if common:
                difference = difference_interval(
                    [ours[seed] for seed in common],
                    [theirs[seed] for seed in common],
                    _shared(self.spread, model.label, other.label),
                )
                found.append(Pair(model.label, other.label, difference, len(common)))
        return found


def make_report(folder: Path, resamples: int | None = None, baseline: str | None = None) -> Report:
    """Read an ablation's runs and work out everything; nothing is trained.

    Args:
        folder: the ablation's.
        resamples: of the bootstrap over test images; by default as many as `contextcaps evaluate` takes.
        baseline: the label that differences are taken from; by default the plan's.

    Raises:
        RunError: no run is finished, a file is damaged, or runs were measured on different images.
    """
    plan, document = Plan.read(folder)
    plan = plan if baseline is None else dataclasses.replace(plan, baseline=baseline)
    results: dict[str, list[RunResult]] = {}
    missing = []
    for entry in plan.entries:
        for seed in plan.seeds:
            if is_finished(run_folder(folder, entry.label, seed)):
                results.setdefault(entry.label, []).append(read_result(folder, entry.label, seed))
            else:
                missing.append(f"{entry.label}, seed {seed}")
    if not results:
        raise NothingFinished(f"{folder}: no run is finished yet; go on with: contextcaps ablate with the same flags")
    _require_same_division(results)
    first: Tested | None = None
    drawn: dict[tuple[str, int], torch.Tensor] = {}
    for runs in results.values():
        for run in runs:
            tested = run.tested()
            first = first or tested
            _require_same_images(run, tested, first)
            drawn[run.label, run.seed] = bootstrap_mean_average_precision(
                torch.from_numpy(tested.scores),
                torch.from_numpy(tested.targets),
                resamples=resamples,
                device="cuda" if torch.cuda.is_available() else None,
            )  # [R], the same images in each for all runs
    assert first is not None
    others = {run.seed: run for run in results.get(plan.baseline, [])}
    spread = pool_deviations({label: [run.metrics["mAP"] for run in runs] for label, runs in results.items()})
    models = []
    for entry in plan.entries:
        if entry.label in results:
            runs = results[entry.label]
            choice = choice_of(plan, entry, folder, _same_settings(runs))
            models.append(_model(entry, runs, others, drawn, first, choice, spread))
    count = len(next(iter(drawn.values())))
    images, classes = first.targets.shape
    return Report(plan, document, tuple(models), tuple(missing), images, classes, count, spread)


def _model(
    entry: Entry,
    runs: list[RunResult],
    baseline: dict[int, RunResult],
    drawn: dict[tuple[str, int], torch.Tensor],
    tested: Tested,
    choice: Choice,
    spread: Spread | None,
) -> ModelReport:
    values = [run.metrics["mAP"] for run in runs]
    common = [run for run in runs if run.seed in baseline]
    is_baseline = any(run is each for run in runs for each in baseline.values())
    difference = image_difference = None
    gains: tuple[ClassGain, ...] = ()
    if common and not is_baseline:
        others = [baseline[run.seed] for run in common]
        difference = difference_interval(
            [run.metrics["mAP"] for run in common],
            [run.metrics["mAP"] for run in others],
            _shared(spread, entry.label, others[0].label),
        )
        samples = sum(
            drawn[run.label, run.seed] - drawn[other.label, other.seed]
            for run, other in zip(common, others, strict=True)
        )
        assert isinstance(samples, torch.Tensor)
        interval = basic_interval(samples / len(common), difference.value)
        image_difference = Estimate(difference.value, *interval)
        gains = _gains(common, others, tested)
    return ModelReport(
        entry=entry,
        runs=tuple(runs),
        mAP=mean_interval(values) if len(values) > 1 else runs[0].image_interval,
        metrics={name: mean_interval([run.metrics.get(name, math.nan) for run in runs]) for name in runs[0].metrics},
        difference=difference,
        image_difference=image_difference,
        pairs=len(common),
        epochs_within=tuple(
            epoch
            for run in runs
            if (epoch := epoch_within([record["val_mAP"] for record in run.history], _WITHIN)) is not None
        ),
        gains=gains,
        choice=choice,
        is_baseline=is_baseline,
    )


def _shared(spread: Spread | None, *labels: str) -> Spread | None:
    """Return the pooled deviation where these models have it; None for their own."""
    return spread if spread is not None and spread.models.issuperset(labels) else None


def _gains(runs: Sequence[RunResult], others: Sequence[RunResult], tested: Tested) -> tuple[ClassGain, ...]:
    """Return the gain of each class with a positive, the largest first."""
    present = (tested.targets == 1).astype(np.int64)  # [n, J]
    labels = present.sum(axis=1)  # [n]
    found = []
    for index, name in enumerate(tested.classes):
        positives = int(present[:, index].sum())
        gain = difference_interval(
            [run.class_precision[name] for run in runs], [run.class_precision[name] for run in others]
        )
        if positives and math.isfinite(gain.value):
            company = float((labels - 1)[present[:, index] == 1].mean())
            found.append(ClassGain(name, gain, runs[0].frequencies.get(name, math.nan), positives, company))
    return tuple(sorted(found, key=lambda each: (-each.gain.value, each.name)))


def _same_settings(runs: Sequence[RunResult]) -> TrainConfig:
    """Return the configuration of a model's runs, which differ in their seeds alone."""
    first = runs[0].config
    for run in runs:
        for name in ("lr", "loss"):
            if getattr(run.config, name) != getattr(first, name):
                raise RunError(
                    f"{run.folder}: was trained with {name} {getattr(run.config, name)}, but {runs[0].folder} with "
                    f"{getattr(first, name)}; remove one of them"
                )
    return first


def _require_same_division(results: dict[str, list[RunResult]]) -> None:
    runs = [run for each in results.values() for run in each]
    fingerprints = runs[0].facts.get("fingerprints")
    # Data that were copied or touched in between have another fingerprint, and the same contents; what these are, any
    # run with the first one's fingerprint may say: older ones did not write it down.
    alike = [run.facts.get("contents") for run in runs if run.facts.get("fingerprints") == fingerprints]
    contents = [each for each in alike if each is not None]
    for run in runs:
        if run.facts.get("fingerprints") != fingerprints and run.facts.get("contents") not in contents:
            raise RunError(f"{run.folder}: was trained on other images than {runs[0].folder}; remove one of them")


def _require_same_images(run: RunResult, tested: Tested, first: Tested) -> None:
    same = tested.classes == first.classes and all(
        np.array_equal(getattr(tested, name), getattr(first, name)) for name in ("targets", "indices")
    )
    if not same:
        raise RunError(f"{run.folder}: was measured on other images than the first run; remove its {run.folder.name}")


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else math.nan

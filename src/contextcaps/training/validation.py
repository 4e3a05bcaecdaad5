"""Validation after each epoch: every validation image is scored once, and metrics are computed of the scores."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from contextcaps.capsules import length_logits, score_logits
from contextcaps.data.loading import Loader
from contextcaps.data.unknown import class_frequencies
from contextcaps.evaluation.metrics import (
    average_precision,
    count_bands,
    count_calibration,
    fit_platt_scaling,
    tune_thresholds,
)
from contextcaps.evaluation.predictions import Precision, Predictions, predict
from contextcaps.models import CapsuleNetwork, ModelConfig
from contextcaps.models.calibration import scale_and_shift
from contextcaps.models.sections import CalibrationConfig
from contextcaps.training.processes import Fabric

__all__ = ["Tuned", "Validation", "ValidationResult", "mean_loss"]

_LEAST_SCORE = 1e-7  # that counts as such where logits are taken of sigmoids: nearer to 1, single precision has no room
_ROWS = 256  # of scores whose loss is computed at once: the spread loss compares all pairs of classes


@dataclasses.dataclass(frozen=True)
class ValidationResult:
    """Results of a validation; the same in all processes, except `predictions`."""

    record: dict[str, float]
    """Loss, mAP, micro and sample AP, and the constant prior's mAP."""
    predictions: Predictions | None = None
    """Scores of all images; None in all processes but rank zero."""


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What the validation images say of the scores, as a checkpoint keeps it."""

    calibration: dict[str, float]
    """Scale and shift of the logits; all else is of the scores that they give."""
    calibration_error: dict[str, float]
    """ECE before and after."""
    thresholds: list[float]
    """[J]"""
    score_bands: list[tuple[float, int, int]]
    """Lowest score, pairs and present pairs of each band of scores."""


class Validation:
    """Scores the validation part.

    Args:
        fabric: launched.
        loader: this process's share of the images.
        classes: [J].
        loss: of scores [B, J] and targets [B, J].
        precision: of the computation.
        sharded: whether the network's weights are shared among the processes, which then have to keep in step.
        tell: called with the number of images done since its last call.
    """

    def __init__(
        self,
        fabric: Fabric,
        loader: Loader,
        classes: tuple[str, ...],
        loss: Callable[[Tensor, Tensor], Tensor],
        precision: Precision,
        sharded: bool = False,
        tell: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.fabric, self.loader, self.classes = fabric, loader, classes
        self.loss, self.precision, self.sharded, self.tell = loss, precision, sharded, tell

    def __call__(self, network: CapsuleNetwork, check: Callable[[], None] = lambda: None) -> ValidationResult:
        """Validate a network; `check` is called between batches."""

        def tell(count: int) -> None:
            self.tell(count)
            check()

        if self.fabric.world_size > 1 and not self.sharded:
            for buffer in network.buffers():  # running means of a norm are each process's own
                torch.distributed.broadcast(buffer, src=0)
        found = predict(
            network, self.loader, self.classes, self.fabric.device, self.precision, tell, in_step=self.sharded
        )
        if not bool(found.scores.isfinite().all()):
            raise ValueError("the network gives scores that are no numbers, though its weights are; use fp32")
        result: Any = self.fabric.broadcast(self._measure(found) if self.fabric.is_global_zero else None)
        return dataclasses.replace(result, predictions=found) if self.fabric.is_global_zero else result

    def tune(self, result: ValidationResult, network: ModelConfig) -> Tuned:
        """Fit the calibration, and then the thresholds, to what a validation of a network found.

        All processes call it, and get the same.
        """
        tuned: Any = None
        if result.predictions is not None:
            raw, targets = result.predictions.scores, result.predictions.targets  # [n, J]
            logits = score_logits(raw, _LEAST_SCORE) if network.scores_are_sigmoids else length_logits(raw)  # [n, J]
            calibration = CalibrationConfig(*fit_platt_scaling(logits, targets))
            scores = scale_and_shift(logits, calibration).sigmoid()  # [n, J]
            tuned = Tuned(
                calibration=dataclasses.asdict(calibration),
                calibration_error={
                    when: float(count_calibration(each, targets).summary()["ECE"])
                    for when, each in (("before", raw), ("after", scores))
                },
                thresholds=tune_thresholds(scores, targets).each.tolist(),
                score_bands=[dataclasses.astuple(band) for band in count_bands(scores, targets).bands],
            )
        return self.fabric.broadcast(tuned)

    def _measure(self, found: Predictions) -> ValidationResult:
        scores, targets = found.scores, found.targets  # [n, J]
        prevalence = torch.from_numpy(class_frequencies(targets.numpy()))  # [J]: AP of constant scores
        record = {
            "val_loss": mean_loss(self.loss, scores, targets),
            "val_mAP": float(average_precision(scores, targets)),
            "val_micro_AP": float(average_precision(scores, targets, average="micro")),
            "val_samples_AP": float(average_precision(scores, targets, average="samples")),
            "prior_mAP": float(prevalence[prevalence > 0].mean()),
        }
        return ValidationResult(record)


def mean_loss(loss: Callable[[Tensor, Tensor], Tensor], scores: Tensor, targets: Tensor) -> float:
    """Return the mean loss of scores [n, J]."""
    total = 0.0
    for rows, truth in zip(scores.split(_ROWS), targets.split(_ROWS), strict=True):
        total += float(loss(rows, truth)) * len(rows)
    return total / len(scores)

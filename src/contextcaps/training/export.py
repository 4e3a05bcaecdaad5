"""The exported model of a run: the best epoch's weights, its calibration and thresholds, and where it came from."""

import dataclasses
import sys

from contextcaps.models import CapsuleNetwork, ModelConfig
from contextcaps.models.score_bands import ScoreBand, ScoreBands
from contextcaps.models.sections import CalibrationConfig
from contextcaps.models.trained import Trained
from contextcaps.training.config import KEPT, TrainConfig
from contextcaps.training.loop import Progress
from contextcaps.training.runs import Run, versions
from contextcaps.training.validation import Tuned

__all__ = ["export", "export_best_so_far", "mark_best_if_last"]


def export(run: Run, network_config: ModelConfig, progress: Progress, frequencies: list[float]) -> None:
    """Write the best epoch's network, calibrated, its thresholds and where it came from into the run's model folder."""
    tuned = Tuned(**progress.tuned)
    network_config = dataclasses.replace(network_config, calibration=CalibrationConfig(**tuned.calibration))
    state = run.checkpoints.read(run.checkpoints.best)
    network = CapsuleNetwork(network_config, start=False)
    weights = state["network"]
    if state["ema"] is not None:
        weights = {**weights, **state["ema"]["means"]}
    network.load_state_dict(weights)
    best = progress.best
    assert best is not None
    network.save_pretrained(run.model_folder)
    Trained(
        thresholds=tuple(tuned.thresholds),
        frequencies=tuple(frequencies),
        seed=run.config.seed,
        data=run.config.data,
        val_data=run.config.val_data,
        split_seed=run.config.split_seed,
        val_as_test=run.config.val_as_test,
        kept={name: value for name in KEPT if (value := getattr(run.config, name)) != getattr(TrainConfig, name)},
        epoch=int(best["epoch"]),
        metrics={
            **{name: value for name, value in best.items() if name.startswith(("val_", "prior_"))},
            "val_ECE": tuned.calibration_error["after"],
            "val_ECE_before": tuned.calibration_error["before"],
        },
        versions=versions(),
        score_bands=ScoreBands(tuple(ScoreBand(*band) for band in tuned.score_bands)),
    ).write(run.model_folder, network_config)


def export_best_so_far(run: Run, network: ModelConfig, progress: Progress, frequencies: list[float]) -> None:
    """Export the best epoch so far of a stopped run; a failure is no reason not to say how to go on."""
    if not progress.history:
        return
    try:
        export(run, network, progress, frequencies)
    except (OSError, ValueError) as error:
        print(f"warning: no model was exported: {error}", file=sys.stderr, flush=True)


def mark_best_if_last(run: Run, progress: Progress) -> None:
    """Mark the last checkpoint as the best where a kill came between saving and marking it."""
    best = progress.best
    if best is None or best is not progress.history[-1] or progress.batch != 0:
        return
    checkpoints = run.checkpoints
    try:
        steps = checkpoints.read(checkpoints.best)["progress"]["step"]
    except ValueError:
        steps = -1
    if steps != best["step"]:
        checkpoints.mark_best()

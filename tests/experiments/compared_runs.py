"""Runs that nobody trained: their folders and predictions, for comparisons."""

import json
from pathlib import Path

import torch

from contextcaps.evaluation.evaluate import Measured
from contextcaps.evaluation.predictions import Predictions
from contextcaps.evaluation.report import evaluate_predictions
from contextcaps.training.config import TrainConfig

CLASSES = ("sea", "sky", "boat", "lamp")


def measured_run(folder: Path, skill: float, images: int = 60, data_seed: int = 0, resamples: int = 40) -> Measured:
    """A finished run whose scores are the truth, `skill` times, and noise; the truth depends on `data_seed` alone."""
    generator = torch.Generator().manual_seed(data_seed)
    targets = (torch.rand(images, len(CLASSES), generator=generator) < 0.3).to(torch.uint8)  # [n, J]
    noise = torch.rand(images, len(CLASSES), generator=generator)  # [n, J]
    scores = (skill * targets + noise) / (1 + skill)
    predictions = Predictions(scores, targets, torch.arange(images), CLASSES)
    evaluation = evaluate_predictions(predictions, (0.3,) * 4, (0.5,) * 4, seed=7, resamples=resamples)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(TrainConfig(seed=3).to_yaml(), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps({"parameters": 1_234_567, "state": "finished"}), encoding="utf-8")
    (folder / "metrics.csv").write_text(
        "epoch,val_mAP,prior_mAP,seed\n1,0.25,0.1,3\n2,0.5,0.1,3\n3,0.375,0.1,3\n", encoding="utf-8"
    )
    (folder / "timing.csv").write_text(
        "epoch,images,seconds_with_validation,images_per_second\n1,100,50.00,2.0\n2,100,30.00,3.3\n3,100,53.00,1.9\n",
        encoding="utf-8",
    )
    return Measured(evaluation, predictions, folder / "evaluation", [])

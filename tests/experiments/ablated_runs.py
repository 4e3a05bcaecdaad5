"""An ablation that nobody ran: its folder, with runs whose scores are made up."""

import json
from pathlib import Path

import numpy as np
import torch

from contextcaps.evaluation.predictions import Predictions
from contextcaps.evaluation.report import evaluate_predictions
from contextcaps.experiments.ablation.grid import Plan, parse_models
from contextcaps.experiments.ablation.results import run_folder
from contextcaps.experiments.ablation.worker import PREDICTIONS
from contextcaps.training.config import TrainConfig

CLASSES = ("sea", "sky", "boat", "lamp", "nothing")
"""The last one is in no test image."""
IMAGES, RESAMPLES = 50, 30


def made_up(out: Path, skills: dict[str, float], seeds: int = 3, **settings: object) -> Plan:
    """Write an ablation with these models; skill is how well each knows the truth."""
    plan = Plan(
        entries=parse_models(list(skills)),
        seeds=tuple(range(seeds)),
        base=TrainConfig(data="scenes", epochs=3),
        baseline=next(iter(skills)).partition("=")[0],
        **settings,  # type: ignore[arg-type]
    )
    out.mkdir(parents=True)
    plan.write(out, command="contextcaps ablate --made-up")
    for entry, skill in zip(plan.entries, skills.values(), strict=True):
        for seed in plan.seeds:
            write_run(plan, out, entry.label, seed, skill)
    return plan


def write_run(plan: Plan, out: Path, label: str, seed: int, skill: float, data_seed: int = 0) -> Path:
    """One finished run; the truth depends on `data_seed` alone."""
    entry = next(each for each in plan.entries if each.label == label)
    folder = run_folder(out, label, seed)
    (folder / "evaluation" / "test").mkdir(parents=True)
    (folder / "model").mkdir()
    predictions = scores_of(seed, skill, data_seed)
    evaluation = evaluate_predictions(predictions, (0.3,) * 5, (0.5,) * 5, seed=0, resamples=RESAMPLES)
    write(folder / "evaluation" / "test" / "evaluation.json", evaluation.to_dict())
    write(folder / "model" / "trained.json", {"frequencies": {name: 0.1 * i for i, name in enumerate(CLASSES, 1)}})
    np.savez(
        folder / PREDICTIONS,
        scores=predictions.scores.numpy(),
        targets=predictions.targets.numpy(),
        indices=predictions.indices.numpy(),
        classes=np.array(CLASSES),
    )
    (folder / "config.yaml").write_text(plan.config(entry, seed, folder).to_yaml(), encoding="utf-8")
    facts = {
        "state": "finished",
        "parameters": 1_500_000,
        "device": "a made-up device",
        "ended": "2026-01-02T03:04:05+00:00",
        "images": {"train": 400, "val": 50},
        "fingerprints": {"train": "a", "val": "b"},
        "memory": {"where": "process", "bytes": 2**30 + seed},
        "versions": {"contextcaps": "0", "commit": "abc"},
    }
    write(folder / "run.json", facts)
    rows = [f"{epoch},{value + 0.01 * seed},0.1,{seed}" for epoch, value in ((1, 0.2), (2, 0.5), (3, 0.502))]
    (folder / "metrics.csv").write_text("\n".join(["epoch,val_mAP,prior_mAP,seed", *rows]) + "\n", encoding="utf-8")
    (folder / "timing.csv").write_text(
        "epoch,images,training_seconds,seconds_with_validation,images_per_second,seed\n"
        f"1,100,90.0,100.00,1.0,{seed}\n2,100,50.0,60.00,1.7,{seed}\n3,100,50.0,60.00,1.7,{seed}\n",
        encoding="utf-8",
    )
    return folder


def scores_of(seed: int, skill: float, data_seed: int = 0) -> Predictions:
    """The truth, `skill` times, and noise that the seed deals."""
    truth = torch.Generator().manual_seed(data_seed)
    targets = (torch.rand(IMAGES, len(CLASSES), generator=truth) < 0.3).to(torch.uint8)  # [n, J]
    targets[:, -1] = 0
    noise = torch.rand(IMAGES, len(CLASSES), generator=torch.Generator().manual_seed(100 + seed))  # [n, J]
    return Predictions((skill * targets + noise) / (1 + skill), targets, torch.arange(IMAGES), CLASSES)


def write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")

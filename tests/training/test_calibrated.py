"""Runs end with a calibrated model: its scores, thresholds and bands; what is trained has no calibration."""

import json
from pathlib import Path

import pytest
import torch
from small_run import quick_runs, small_config
from torch.nn.functional import binary_cross_entropy

from contextcaps.evaluation.metrics import average_precision, count_bands, fit_platt_scaling, tune_thresholds
from contextcaps.evaluation.predictions import Predictions
from contextcaps.models import ModelConfig
from contextcaps.models.loading import load_model
from contextcaps.training.evaluate import evaluate
from contextcaps.training.resolved import network_config
from contextcaps.training.starting import StartingModel, with_starting_model
from contextcaps.training.trainer import resume, train

KINDS = {
    "lengths": {"model": "capsnet", "loss": "margin"},
    "field": {"loss": "asl"},
    "sigmoids": {"model": "gap", "loss": "bce", "options": {}},
}


@pytest.fixture(scope="module", params=KINDS)
def run(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    settings = {"epochs": 2, "checkpoint_steps": 0, "data": "scenes?count=96&size=32", **KINDS[request.param]}
    with quick_runs():
        train(small_config(folder / "run", folder / "cache", **settings), progress=False)
    return folder / "run"


def predicted(run: Path, model: Path, out: Path) -> Predictions:
    """What a model says of the run's validation images."""
    common = {"split": "val", "out": out, "cache": run.parent / "cache", "resamples": 5, "progress": False}
    return evaluate(model, **common).predictions


@pytest.mark.long
def test_the_exported_model_is_calibrated_and_all_else_follows_from_its_scores(run, tmp_path) -> None:
    network, trained = load_model(run)
    document = json.loads((run / "model" / "config.json").read_text())
    raw_model = tmp_path / "raw"
    network.save_pretrained(raw_model)
    (raw_model / "config.json").write_text(json.dumps({**document, "calibration": None}))
    (raw_model / "trained.json").write_text((run / "model" / "trained.json").read_text())
    found, raw = (predicted(run, model, tmp_path / "e") for model in (run, raw_model))
    truth = found.targets

    again = fit_platt_scaling(torch.logit(found.scores.double()), truth)
    assert again == pytest.approx((1.0, 0.0), abs=0.02)  # nothing is left to scale or to shift
    before, after = (float(binary_cross_entropy(each.scores.clamp(0, 1), truth.float())) for each in (raw, found))
    assert after < before

    for average, name in (("macro", "val_mAP"), ("micro", "val_micro_AP"), ("samples", "val_samples_AP")):
        value = float(average_precision(found.scores, truth, average=average))
        assert value == pytest.approx(trained.metrics[name], abs=1e-9)

    assert trained.thresholds == pytest.approx(tuple(tune_thresholds(found.scores, truth).each.tolist()), abs=1 / 256)
    bands = count_bands(found.scores, truth)
    assert [band.present for band in trained.score_bands.bands] == pytest.approx(
        [band.present for band in bands.bands], abs=2
    )
    measured = evaluate(
        run, split="val", out=tmp_path / "e", cache=run.parent / "cache", resamples=5, progress=False
    ).evaluation
    assert measured.metrics["ECE"].model.value == pytest.approx(trained.metrics["val_ECE"], abs=1e-4)
    assert trained.metrics["val_ECE"] < trained.metrics["val_ECE_before"]
    assert (tmp_path / "e" / "reliability.png").stat().st_size > 10_000


@pytest.mark.long
def test_what_is_trained_has_no_calibration_and_goes_on(run) -> None:
    assert ModelConfig.from_yaml(run / "network.yaml").calibration is None
    before = (run / "model" / "config.json").read_text()
    with quick_runs():
        resume(run, progress=False)  # exports again
    assert (run / "model" / "config.json").read_text() == before
    config = small_config(run, run, start_from=str(run), backbone="auto", image_size=None)
    config = with_starting_model(config, StartingModel(str(run)))
    assert network_config(config, ("one", "other")).calibration is None


def test_a_calibration_cannot_be_asked_for(tmp_path) -> None:
    config = small_config(tmp_path, tmp_path, options={"calibration": "default"})
    with pytest.raises(ValueError, match=r"^calibration: expected none .* training fits it at its end"):
        network_config(config, ("one", "other"))

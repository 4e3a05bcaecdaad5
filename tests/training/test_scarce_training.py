"""Trainings on a part of the labels or images: what is kept, and where."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_run import finals, quick_runs, small_config

from contextcaps.data.unknown import UNKNOWN
from contextcaps.experiments.ablation.grid import Plan, parse_models
from contextcaps.training.config import TrainConfig
from contextcaps.training.data import fit_batch_size, open_parts
from contextcaps.training.evaluate import evaluate
from contextcaps.training.losses import LOSSES
from contextcaps.training.trainer import train

SMALL = {"data": "scenes?count=48&size=32", "image_size": 32}


def parts_of(**changes):
    return open_parts(TrainConfig(**{**SMALL, **changes}))


@pytest.mark.parametrize("data", [SMALL["data"], f"{SMALL['data']}&split=train"])
@pytest.mark.parametrize("val_data", [None, "scenes?count=20&size=32&split=validation"])
def test_only_the_training_part_loses_labels_and_images(data: str, val_data: str | None) -> None:
    """Where the parts are given, where they are divided, and where another source is validated on."""
    whole = parts_of(data=data, val_data=val_data)
    fewer = parts_of(data=data, val_data=val_data, keep_labels=0.3, keep_images=0.5)
    assert fewer.keys() == whole.keys()
    for name in whole.keys() - {"train"}:
        assert fewer[name].source.fingerprint() == whole[name].source.fingerprint()
        assert (fewer[name].targets() == whole[name].targets()).all()
    assert len(fewer["train"]) == round(len(whole["train"]) / 2)
    given, kept = whole["train"].targets()[fewer["train"].source.indices], fewer["train"].targets()
    assert (kept[kept != UNKNOWN] == given[kept != UNKNOWN]).all()
    assert (kept != UNKNOWN).mean() == pytest.approx(0.3, abs=0.06)


def test_the_seed_of_a_run_does_not_change_what_is_kept() -> None:
    one, other, drawn_anew = (
        parts_of(keep_labels=0.3, keep_images=0.5, **seeds)["train"]
        for seeds in ({"seed": 0}, {"seed": 1}, {"keep_seed": 1})
    )
    assert one.source.indices == other.source.indices != drawn_anew.source.indices
    assert (one.targets() == other.targets()).all()


@pytest.mark.parametrize("hidden", ["unknown", "absent"])
def test_batches_have_the_labels_of_the_part(hidden: str, tmp_path) -> None:
    """From the prepared copy, which is that of all labels, and from the source with any number of workers."""
    config = TrainConfig(**SMALL, keep_labels=0.3, hidden_labels=hidden, cache=str(tmp_path))
    prepared, streamed = (open_parts(config)["train"] for _ in range(2))
    prepared.prepare(config, progress=False)
    whole = parts_of()["train"]
    whole.prepare(TrainConfig(**SMALL, cache=str(tmp_path)), progress=False)
    assert prepared.prepared.folder == whole.prepared.folder
    assert not (whole.prepared.targets == UNKNOWN).any()
    expected = streamed.targets()
    assert (prepared.targets() == expected).all()
    assert (expected == UNKNOWN).any() == (hidden == "unknown")
    assert (expected == 1).sum() < (whole.targets() == 1).sum()
    loaders = [prepared.loader(config, shuffle=True, seed=3)]
    for workers in (1, 3):
        config = TrainConfig(**SMALL, keep_labels=0.3, hidden_labels=hidden, workers=workers, batch_size=10)
        loaders.append(streamed.loader(config, shuffle=True, seed=3))
    for loader in loaders:
        found = {index: row for batch in loader for index, row in zip(batch.indices, batch.targets, strict=True)}
        assert (np.stack([found[index] for index in range(48)]) == expected).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_an_image_without_a_known_label_gives_no_gradient(loss: str) -> None:
    scores = torch.full((2, 5), 0.5, requires_grad=True)
    targets = torch.tensor([[255] * 5, [1, 0, 255, 0, 1]], dtype=torch.uint8)
    LOSSES[loss](scores, targets).backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[0] == 0).all()
    assert scores.grad[1, 0] != 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"keep_labels": 0.0}, "keep_labels: expected a share above 0 and at most 1, got 0"),
        ({"keep_labels": 1.5}, "keep_labels: expected a share above 0 and at most 1, got 1.5"),
        ({"keep_images": 0}, "keep_images: expected a share above 0 and at most 1, or a whole number of images, got 0"),
        ({"keep_images": -5}, "keep_images: .*, got -5"),
        ({"keep_images": 1.5}, "keep_images: .*, got 1.5"),
        ({"keep_images": float("nan")}, "keep_images: .*, got nan"),
        ({"hidden_labels": "gone", "keep_labels": 0.5}, "hidden_labels: expected one of"),
        (
            {"hidden_labels": "absent"},
            "hidden_labels: expected unknown where no label is hidden, got absent; hide some",
        ),
        ({"keep_seed": -1}, "keep_seed"),
    ],
)
def test_what_is_refused(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**values)


def test_hardly_any_image_left_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 10 training images, got 2; keep more of them with --keep-images"):
        fit_batch_size(TrainConfig(**SMALL, keep_images=0.05), 2)


def test_models_of_an_ablation_differ_in_what_hidden_labels_become() -> None:
    entries = parse_models("gap,naive=gap:hidden_labels=absent")
    base = TrainConfig(keep_labels=0.1)
    plan = Plan(entries=entries, seeds=(0,), base=base, baseline="gap")
    assert [plan.config(entry, 0, None).hidden_labels for entry in entries] == ["unknown", "absent"]
    assert {plan.config(entry, 0, None).keep_labels for entry in entries} == {0.1}
    with pytest.raises(ValueError, match="models: naive: hidden_labels: expected unknown where no label is hidden"):
        Plan(entries=entries, seeds=(0,), base=TrainConfig(), baseline="gap")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run on a third of the labels of 36 of 48 images."""
    folder = tmp_path_factory.mktemp("scarce")
    settings = {"keep_labels": 0.3, "keep_images": 36, "epochs": 1, "checkpoint_steps": 0, "class_weights": "sqrt"}
    with quick_runs():
        train(small_config(folder / "run", folder / "cache", **settings), progress=False)
    return folder / "run"


@pytest.mark.long
def test_a_training_learns_from_what_is_kept_alone(run, tmp_path) -> None:
    trained = json.loads((run / "model" / "trained.json").read_text())
    part = open_parts(TrainConfig.from_yaml(run / "config.yaml"))["train"]
    targets = part.targets()
    known = (targets != UNKNOWN).sum(axis=0)
    assert known.max() < 24
    expected = (targets == 1).sum(axis=0) / np.maximum(known, 1)
    assert list(trained["frequencies"].values()) == pytest.approx(expected.tolist())
    assert trained["kept"] == {"keep_images": 36.0, "keep_labels": 0.3}
    assert "keep_labels 0.3" in (run / "model" / "README.md").read_text().replace("\\", "")
    with quick_runs():
        streamed = train(
            small_config(
                tmp_path / "streamed",
                tmp_path,
                prepare=False,
                keep_labels=0.3,
                keep_images=36,
                epochs=1,
                checkpoint_steps=0,
                class_weights="sqrt",
            ),
            progress=False,
        )
    assert finals(streamed.folder)["model"] == finals(run)["model"]


@pytest.mark.long
def test_the_test_part_has_all_labels_and_the_run_knows_its_images(run, tmp_path) -> None:
    common = {"accelerator": "cpu", "resamples": 2, "progress": False}
    measured = evaluate(run, out=tmp_path / "test", **common)
    assert (measured.evaluation.images, measured.evaluation.unknown) == (48, 0)
    for model in (run, run / "model"):
        own = evaluate(model, split="train", out=tmp_path / model.name, cache=run.parent / "cache", **common)
        assert (own.evaluation.images, own.evaluation.unknown, own.evaluation.seen["train"]) == (36, 0, 36)

"""Whole trainings with the options that change what is trained, and the evaluation of what came out."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
from small_run import finals, quick_runs, rows, small_config, small_words

import contextcaps
from contextcaps import cli
from contextcaps.data import DataError
from contextcaps.models import CapsuleNetwork
from contextcaps.models.shipped import ship
from contextcaps.training.config import TrainConfig
from contextcaps.training.evaluate import evaluate
from contextcaps.training.failures import OutOfMemory
from contextcaps.training.runs import Run, RunState
from contextcaps.training.trainer import train

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def run(tmp_path_factory, cache) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(small_config(folder, cache), progress=False)
    return folder


@pytest.fixture(autouse=True)
def _quick(run):
    """All runs but the module's own."""
    with quick_runs():
        yield


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_training_and_validation_compute_in_the_precision_asked_for(tmp_path, cache, precision, dtype) -> None:
    seen = set()
    original = CapsuleNetwork.from_features

    def watched(network: CapsuleNetwork, features: torch.Tensor, *arguments: object, **options: object) -> object:
        seen.add((network.training, features.dtype))
        return original(network, features, *arguments, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CapsuleNetwork, "from_features", watched)
        train(small_config(tmp_path / "run", cache, epochs=1, precision=precision), progress=False)
    assert seen == {(True, dtype), (False, dtype)}


def test_a_run_holds_everything(run) -> None:
    found = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file() and "tensorboard" not in str(path)}
    assert found >= {
        "config.yaml",
        "run.json",
        "metrics.csv",
        "timing.csv",
        "curves.png",
        "checkpoints/last.ckpt",
        "checkpoints/best.ckpt",
        "model/model.safetensors",
        "model/config.json",
        "model/trained.json",
    }
    assert list((run / "tensorboard").glob("events*"))
    facts = json.loads((run / "run.json").read_text())
    assert facts["state"] == "finished"
    assert facts["seed"] == 0
    assert facts["versions"]["torch"] == torch.__version__
    assert {"contextcaps", "python", "pytorch-lightning", "platform"} <= facts["versions"].keys()
    assert facts["images"] == {"train": 48, "val": 48}
    trained = json.loads((run / "model" / "trained.json").read_text())
    assert trained["seed"] == 0
    assert trained["preprocessing"]["size"] == [32, 32]
    assert len(trained["thresholds"]) == len(trained["frequencies"]) == 47
    assert TrainConfig.from_yaml(run / "config.yaml").seed == 0
    records = rows(run)
    assert [row["epoch"] for row in records] == ["1", "2", "3"]
    assert {row["seed"] for row in records} == {"0"}
    assert trained["epoch"] == int(max(records, key=lambda row: float(row["val_mAP"]))["epoch"])
    assert torch.load(run / "checkpoints/last.ckpt")["seed"] == 0


def test_it_learns(tmp_path, cache) -> None:
    """Far above the constant prior within seconds, on pictures that it has not seen."""
    settings = {"data": "scenes?count=96&size=32", "batch_size": 16, "lr": 3e-3, "epochs": 5}
    config = small_config(tmp_path / "run", cache, checkpoint_steps=0, ema=0.0, **settings)
    result = train(config, progress=False)
    assert result.best["val_mAP"] > 3 * result.best["prior_mAP"]
    assert result.history[-1]["train_loss"] < 0.8 * result.history[0]["train_loss"]


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "bce", "class_weights": "sqrt", "schedule": "cosine"},
        {"loss": "asl", "schedule": "constant", "clip": 0.0},
        {"loss": "spread", "model": "capsnet", "class_weights": "effective"},
        {"reconstruction": 0.0005, "precision": "bf16"},
        {"model": "capsnet-literal"},
        {"val_data": "scenes?count=40&size=32&split=test", "augmentation": False},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_options_train(tmp_path, cache, changes) -> None:
    result = train(small_config(tmp_path / "run", cache, epochs=1, checkpoint_steps=0, **changes), progress=False)
    (record,) = result.history
    assert all(map(torch.tensor([*record.values()]).isfinite().tolist().__getitem__, range(len(record))))
    assert contextcaps.load(result.folder).tag(torch.zeros(3, 32, 32, dtype=torch.uint8))[0].error is None


def test_streaming_gives_what_the_prepared_copy_gives(tmp_path, cache) -> None:
    for name, prepare in (("prepared", True), ("streamed", False)):
        config = small_config(tmp_path / name, cache, prepare=prepare, epochs=1, accumulate=2, checkpoint_steps=0)
        train(config, progress=False)
    assert finals(tmp_path / "prepared") == finals(tmp_path / "streamed")


def test_early_stop(tmp_path, cache) -> None:
    """With a learning rate that moves nothing, the first epoch stays the best."""
    config = small_config(tmp_path / "run", cache, lr=1e-30, ema=0.0, epochs=9, early_stop=2, checkpoint_steps=0)
    result = train(config, progress=False)
    assert [record["epoch"] for record in result.history] == [1, 2, 3]
    assert result.best["epoch"] == 1


def test_the_best_epoch_is_exported(tmp_path, cache) -> None:
    config = small_config(tmp_path / "run", cache, lr=0.3, ema=0.0, epochs=3, schedule="constant", checkpoint_steps=0)
    result = train(config, progress=False)
    best = torch.load(tmp_path / "run/checkpoints/best.ckpt")
    assert best["progress"]["step"] == result.best["step"]
    network = contextcaps.CapsuleNetwork.from_pretrained(result.model)
    for name, weight in network.state_dict().items():
        assert torch.equal(weight, best["network"][name]), name
    measured = evaluate(result.folder, split="val", out=tmp_path / "e", cache=cache, resamples=10, progress=False)
    assert measured.evaluation.metrics["mAP"].model.value == pytest.approx(result.best["val_mAP"], abs=1e-9)


def test_what_is_refused_leaves_no_folder(tmp_path, cache) -> None:
    """So that the corrected command can use it."""
    for changes in ({"precision": "fp16"}, {"val_data": "scenes?count=48&size=32&split=train"}):
        with pytest.raises(ValueError, match=r"precision|expected other images to validate on"):
            train(small_config(tmp_path / "run", cache, **changes), progress=False)
        assert not (tmp_path / "run").exists()
    Run.create(small_config(tmp_path / "run", cache))


def test_other_data_to_validate_on(tmp_path, cache) -> None:
    """Of both, the part that its purpose asks for, whatever the source calls it."""
    from PIL import Image

    lines = ["image,labels,split"]
    for number in range(40):
        Image.new("RGB", (32, 32), (6 * number, 99, 255 - 6 * number)).save(tmp_path / f"{number}.png")
        split = "train2017" if number < 28 else "val2017"
        lines.append(f"{number}.png,{'dark' if number % 28 < 14 else 'light'},{split}")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    source = f"table:{tmp_path / 'table.csv'}"
    settings = {"data": source, "val_data": source, "batch_size": 14, "epochs": 1, "checkpoint_steps": 0}
    train(small_config(tmp_path / "run", cache, **settings), progress=False)
    assert Run.open(tmp_path / "run").facts["images"] == {"train": 28, "val": 12}
    common = {"cache": cache, "resamples": 5, "progress": False}
    for model in (tmp_path / "run", tmp_path / "run" / "model"):
        measured = evaluate(model, out=tmp_path / "e", **common)
        assert len(measured.predictions) == 12  # never what it was trained on
        assert json.loads((tmp_path / "e" / "evaluation.json").read_text())["facts"]["part"] == "val"


def test_bad_images_are_left_out_and_reported(tmp_path, cache, capsys) -> None:
    from PIL import Image

    lines = ["image,labels"]
    for number in range(60):
        Image.new("RGB", (32, 32), (4 * number, 99, 255 - 4 * number)).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{'dark' if number < 30 else 'light'}")
    for number in (7, 40):
        (tmp_path / f"{number}.png").write_text("no image")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    for name, prepare in (("prepared", True), ("streamed", False)):
        settings = {"data": f"table:{tmp_path / 'table.csv'}", "on_bad": "skip", "prepare": prepare, "batch_size": 16}
        train(small_config(tmp_path / name, cache, epochs=1, **settings), progress=False)
        told = capsys.readouterr().err
        assert "left out" in told
        assert "7.png" in told or "40.png" in told
    images = Run.open(tmp_path / "prepared").facts["images"]
    assert 52 <= images["train"] + images["val"] <= 54  # the test part has the other tenth


def test_classes_that_look_wrong_are_told_once_before_training(tmp_path, cache, capsys) -> None:
    from PIL import Image

    lines = ["image,labels"]
    for number in range(40):
        Image.new("RGB", (32, 32), (6 * number, 99, 255 - 6 * number)).save(tmp_path / f"{number}.png")
        lines.append(f'{number}.png,"cup, {("knife", "Sandwich", "sandwich")[number % 3]}"')
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    data = f"table:{tmp_path / 'table.csv'}"
    refused = {"devices": 2, "prepare": False, "on_bad": "skip"}
    for options, expected in (
        (
            "",
            [
                "note: labels are separated by ','",
                "note: 1 class is written in several ways",
                "warning: every image has 'cup'",
            ],
        ),
        (
            "?separator=;",
            [
                "note: no cell contains",
                "note: 1 class is written in several ways",
                "warning: 2 of 2 classes contain ','",
            ],
        ),
    ):
        with pytest.raises(ValueError, match="on_bad"):  # nothing is trained
            train(small_config(tmp_path / "run", cache, data=data + options, **refused))
        told = capsys.readouterr().err.splitlines()
        assert len(told) == len(expected)
        for line, (kind, words) in zip(told, (each.split(": ", 1) for each in expected), strict=True):
            assert line.startswith(f"{kind}: {data}{options.partition('?')[0]}")
            assert words in line
    quietly = small_config(tmp_path / "run", cache, data=data, **refused)
    with pytest.raises(ValueError, match="on_bad"):
        train(quietly, progress=False)
    (told_quietly,) = capsys.readouterr().err.splitlines()
    assert told_quietly.startswith("warning: ")


def test_out_of_memory_is_one_message(tmp_path, cache, monkeypatch) -> None:
    from contextcaps.training.step import TaggingModule

    def exhaust(module, batch, index):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(TaggingModule, "training_step", exhaust)
    with pytest.raises(OutOfMemory, match=r"out of memory; a run keeps its settings.*smaller --batch-size") as told:
        train(small_config(tmp_path / "run", cache), progress=False)
    assert (told.value.folder, told.value.exit_code) == (tmp_path / "run", 4)
    state = RunState.read(tmp_path / "run")
    assert (state.state, state.failure.kind) == ("failed", "out_of_memory")


def test_a_warning_is_told_and_kept(tmp_path, cache, capsys) -> None:
    config = small_config(
        tmp_path / "run", cache, model="capsnet-rw-crf-literal", ema=0.0, epochs=2, checkpoint_steps=0
    )
    train(config, progress=True)
    told = capsys.readouterr().err
    assert "warning: " in told
    assert "/decisions/mean-field-crf/" in told
    assert (tmp_path / "run" / "warnings.log").read_text().strip()


def test_evaluate_on_other_data_and_parts(tmp_path, run, cache) -> None:
    common = {"cache": cache, "resamples": 10, "progress": False}
    test = evaluate(run, out=tmp_path / "test", **common)
    assert json.loads((tmp_path / "test" / "evaluation.json").read_text())["facts"]["part"] == "test"
    whole = evaluate(run, "scenes?count=30&size=32&split=train", out=tmp_path / "whole", **common)
    assert len(whole.predictions) == 30
    alone = evaluate(run / "model", "scenes?count=48&size=32", split="test", out=tmp_path / "alone", **common)
    assert torch.equal(alone.predictions.scores, test.predictions.scores)
    with pytest.raises(DataError, match="split: expected one of train, val, test"):
        evaluate(run, split="holdout", **common)


def test_evaluate_a_shipped_model(tmp_path, run, cache, shipped, monkeypatch) -> None:
    """It is measured on data that are named, and nothing is written into the package."""
    written = ship(run, "coco80", graph=False).folder
    before = sorted(os.listdir(written))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coco80").mkdir()  # is not meant
    common = {"cache": cache, "resamples": 10, "progress": False}
    with pytest.raises(ValueError, match="data: expected a source, as the data of the shipped model coco80 are not"):
        evaluate("coco80", **common)
    measured = evaluate("coco80", "scenes?count=30&size=32&split=train", **common)
    assert measured.folder.parent == Path("evaluation")
    assert len(measured.predictions) == 30
    assert sorted(os.listdir(written)) == before
    assert os.listdir(shipped) == ["coco80"]
    with pytest.raises(ValueError, match="known: expected a run, or a model's folder that says what it was trained on"):
        evaluate("coco80", "scenes?count=30&size=32&split=train", known=[0.5], **common)


def test_evaluate_refuses_other_classes(tmp_path, run, cache) -> None:
    from PIL import Image

    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    (tmp_path / "table.csv").write_text("image,labels\na.png,whale\n")
    with pytest.raises(DataError, match=r"expected the model's 47 classes; the data lack 47.*does not know 1: whale"):
        evaluate(run, f"table:{tmp_path / 'table.csv'}", cache=cache, progress=False)


def test_the_commands_in_turn(tmp_path, cache, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = small_words(tmp_path / "unused", cache, epochs=1, checkpoint_steps=0)
    del words[words.index("--out") : words.index("--out") + 2]
    cli.main(words)
    shown = capsys.readouterr()
    assert "runs/contextcaps-rw-crf-corr-scenes-1" in shown.out
    assert "validation mAP" in shown.out
    assert "epoch 1/1: loss" in shown.err
    cli.main(
        ["evaluate", "runs/contextcaps-rw-crf-corr-scenes-1", "--cache", str(cache), "--resamples", "10", "--quiet"]
    )
    assert "mAP (macro)" in capsys.readouterr().out
    assert (tmp_path / "runs/contextcaps-rw-crf-corr-scenes-1/evaluation/test/evaluation.md").exists()
    picture = contextcaps.open_source("scenes?count=1&size=32", split="test").sample(0)
    from PIL import Image

    Image.fromarray(picture.image).save("picture.png")
    cli.main(
        ["tag", "picture.png", "--model", "runs/contextcaps-rw-crf-corr-scenes-1", "--top-k", "3", "--threshold", "0"]
    )
    row = json.loads(capsys.readouterr().out)
    assert len(row["tags"]) == 3
    config = TrainConfig.from_yaml(Path("runs/contextcaps-rw-crf-corr-scenes-1/config.yaml"))
    another = Run.create(dataclasses.replace(config, out=None))
    assert another.folder == Path("runs/contextcaps-rw-crf-corr-scenes-2")  # beside the first

"""What can be refused is refused before the data are opened, or else before an image is prepared."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_run import small_config

from contextcaps.experiments.ablation.ablation import ablate
from contextcaps.training.config import TrainConfig
from contextcaps.training.evaluate import evaluate
from contextcaps.training.trainer import train

NOWHERE = {"data": "coco:/nowhere/at/all"}  # opening it would be another error


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": "huge"}, "backbone: expected 'paper', 'small'"),
        ({"backbone": "smal"}, "did you mean 'small'"),
        ({"backbone": "timm:resnet1"}, "backbone: timm has no model 'resnet1'; did you mean"),
        ({"model": "contextcap"}, "model: there is no 'contextcap'; did you mean 'contextcaps'"),
        ({"options": {"capsules.typs": 2}}, "capsules.typs: no such field of .*; did you mean 'capsules.types'"),
        ({"options": {"crf.rank": 2}, "model": "gap"}, r"crf\.rank: (gap has no|none of the models has) "),
        ({"backbone": "paper", "image_size": 12}, "image_size: 12×12 px is too small"),
        ({"options": {"pretrained_file": "no.pth"}, "backbone": "timm:resnet18"}, "pretrained_file: there is no file"),
        ({"options": {"max_weights": 10}}, "max_weights"),
        ({"known": 0.5, "model": "capsnet"}, r"known: this network \(capsnet\) cannot be told labels"),
        ({"precision": "fp16"}, "precision: expected fp32 or bf16 on a CPU"),
    ],
)
def test_before_the_data_are_opened(changes, message, tmp_path) -> None:
    config = small_config(tmp_path / "run", tmp_path / "cache", **{**NOWHERE, **changes})
    with pytest.raises(ValueError, match=message):
        train(config, progress=False)
    with pytest.raises(ValueError, match=message):
        ablate(train=config, models=config.model, seeds=1, out=str(tmp_path / "ablation"), progress=False)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["data", "val_data", "out", "cache"])
def test_a_place_that_is_no_utf8(name) -> None:
    with pytest.raises(ValueError, match=rf"{name}: expected a name in UTF-8, got table:x/.udcff; rename it"):
        TrainConfig(**{name: os.fsdecode(b"table:x/\xff")})


def test_a_class_that_is_no_utf8(tmp_path) -> None:
    for folder in (b"c\xe9t", b"dog"):
        place = tmp_path / "pets" / os.fsdecode(folder)
        place.mkdir(parents=True)
        for number in range(8):
            pixels = np.full((8, 8, 3), 9 * number, np.uint8)
            Image.fromarray(pixels).save(place / f"{number}.png")
    config = small_config(tmp_path / "run", tmp_path / "cache", data=f"folders:{tmp_path / 'pets'}")
    with pytest.raises(ValueError, match=r"class: expected a name in UTF-8, got c.udce9t; rename it"):
        train(config, progress=False)
    assert os.listdir(tmp_path) == ["pets"]


@pytest.mark.parametrize("place", ["taken", "file", "file/run"])
def test_a_folder_that_will_not_do(place, tmp_path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"expected an empty or a new folder|is a file; expected a folder"):
        train(small_config(tmp_path / place, tmp_path / "cache", **NOWHERE), progress=False)
    assert sorted(os.listdir(tmp_path)) == ["file", "taken"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to(tmp_path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="may not be written to; choose another folder with --out"):
        train(small_config(tmp_path / "run", tmp_path / "cache", **NOWHERE), progress=False)


def test_before_an_image_is_prepared(tmp_path) -> None:
    config = small_config(tmp_path / "run", tmp_path / "cache", data="scenes?count=9&size=32", batch_size=16)
    with pytest.raises(ValueError, match="expected at least 10 training images, got 9"):
        train(config, progress=False)
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="expected at least 10 training images, got 9"):
        ablate(train=config, models="capsnet", seeds=1, out=str(tmp_path / "ablation"), progress=False)
    assert not (tmp_path / "cache").exists()


def test_evaluate_refuses_its_folder_before_it_looks_for_the_model(tmp_path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is a file; expected a folder"):
        evaluate("nowhere", out=tmp_path / "file")
    with pytest.raises(ValueError, match="resamples: expected a whole number of at least 1, got 0"):
        evaluate("nowhere", resamples=0)
    assert Path(tmp_path / "file").read_text() == "mine"

"""Training that starts from the backbone of a trained model."""

from pathlib import Path

import pytest
import torch

import contextcaps
from contextcaps.models.loading import load_model
from contextcaps.models.shipped import ship
from contextcaps.training.config import TrainConfig
from contextcaps.training.starting import describe_start, starting_backbone, with_starting_model
from contextcaps.training.trainer import with_absolute_places

SMALL = {"data": "scenes?count=60&size=32", "backbone": "small", "epochs": 1, "batch_size": 20, "progress": False}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small run on images of 32 px."""
    folder = tmp_path_factory.mktemp("start") / "first"
    contextcaps.train(model="gap", image_size=32, out=str(folder), cache=str(folder.parent / "cache"), **SMALL)
    return folder


def test_backbone_size_and_normalisation_are_taken_over(begun: Path) -> None:
    config = with_starting_model(TrainConfig(start_from=str(begun), options={"pixel_std": [0.5, 0.5, 0.5]}))
    assert (config.backbone, config.image_size) == ("small", 32)
    assert config.options == {"pixel_mean": [0.485, 0.456, 0.406], "pixel_std": [0.5, 0.5, 0.5]}  # a flag has the say
    first = load_model(begun)[0].backbone.state_dict()
    taken = starting_backbone(config)
    assert taken is not None
    assert taken.keys() == first.keys()
    assert all(torch.equal(taken[name], first[name]) for name in first)


def test_without_a_model_only_the_size_is_settled() -> None:
    assert with_starting_model(TrainConfig()) == TrainConfig(image_size=64)
    assert starting_backbone(TrainConfig()) is None


@pytest.mark.long
def test_the_run_starts_from_these_weights_with_a_new_head(begun: Path, tmp_path: Path) -> None:
    result = contextcaps.train(
        start_from=str(begun), model="gap", freeze=True, views=1, out=str(tmp_path / "second"), cache=str(tmp_path),
        **{**SMALL, "backbone": "auto"},
    )  # fmt: skip
    first, second = load_model(begun)[0], load_model(result.folder)[0]
    for name, weight in first.backbone.state_dict().items():
        assert torch.equal(weight, second.backbone.state_dict()[name]), name
    assert not torch.equal(first.head.linear.weight, second.head.linear.weight)
    assert second.config.image_size == (32, 32)


@pytest.mark.long
def test_a_run_goes_on_without_the_model_that_it_started_from(begun: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    begun.rename(moved)
    try:
        settings = {"model": "gap", "cache": str(tmp_path), **{**SMALL, "backbone": "auto"}}
        result = contextcaps.train(start_from=str(moved), out=str(tmp_path / "run"), **settings)
    finally:
        moved.rename(begun)
    assert contextcaps.resume(result.folder, progress=False).history == result.history


def test_a_shipped_model_stays_a_name(begun: Path, shipped: Path, tmp_path: Path, monkeypatch) -> None:
    """Also where a folder is called as it is; that is reached as a path."""
    ship(begun, "coco80")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coco80").mkdir()
    named, folder = (with_absolute_places(TrainConfig(start_from=start)) for start in ("coco80", "./coco80"))
    assert named.start_from == "coco80"
    assert folder.start_from == str(tmp_path / "coco80")
    config = with_starting_model(named)
    assert (config.backbone, config.image_size) == ("small", 32)
    written = load_model("coco80")[0].backbone.state_dict()
    for name, weight in (starting_backbone(config) or {}).items():
        assert torch.equal(weight, written[name]), name
    assert describe_start(config, 5).startswith("the backbone small, ")
    assert " million weights, starts from coco80 (trained on 47 classes); images of 32×32 px" in describe_start(
        config, 5
    )


def test_another_backbone_is_refused(begun: Path) -> None:
    with pytest.raises(ValueError, match=r"^backbone: expected auto or small, the backbone of .*first, got lite0$"):
        contextcaps.train(start_from=str(begun), **{**SMALL, "backbone": "lite0"})


def test_a_missing_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^nowhere: no such folder"):
        contextcaps.train(start_from="nowhere", **{**SMALL, "backbone": "auto"})


@pytest.mark.long
def test_a_compiled_backbone_trains_to_the_same_loss(tmp_path: Path) -> None:
    settings = {"model": "gap", "image_size": 32, "cache": str(tmp_path), **SMALL}
    plain, compiled = (
        contextcaps.train(compile=chosen, out=str(tmp_path / str(chosen)), **settings) for chosen in (False, True)
    )
    assert compiled.best["train_loss"] == pytest.approx(plain.best["train_loss"], rel=1e-4)

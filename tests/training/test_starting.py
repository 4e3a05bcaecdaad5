"""Training that starts from the backbone of a trained model."""

import dataclasses
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError

import contextcaps
from contextcaps.models import create_model, hub, model_config
from contextcaps.models.loading import load_model
from contextcaps.models.shipped import ship
from contextcaps.training.config import TrainConfig
from contextcaps.training.resolved import with_absolute_places
from contextcaps.training.starting import StartingModel, starting_model, with_starting_model

SMALL = {"data": "scenes?count=60&size=32", "backbone": "small", "epochs": 1, "batch_size": 20, "progress": False}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small run on images of 32 px."""
    folder = tmp_path_factory.mktemp("start") / "first"
    contextcaps.train(model="gap", image_size=32, out=str(folder), cache=str(folder.parent / "cache"), **SMALL)
    return folder


def test_backbone_size_and_normalisation_are_taken_over(begun: Path) -> None:
    start = StartingModel(str(begun))
    config = with_starting_model(TrainConfig(start_from=str(begun), options={"pixel_std": [0.5, 0.5, 0.5]}), start)
    assert (config.backbone, config.image_size) == ("small", 32)
    assert config.options == {"pixel_mean": [0.485, 0.456, 0.406], "pixel_std": [0.5, 0.5, 0.5]}  # a flag has the say
    first = load_model(begun)[0].backbone.state_dict()
    assert start.weights.keys() == first.keys()
    assert all(torch.equal(start.weights[name], first[name]) for name in first)


def test_without_a_model_only_the_size_is_settled() -> None:
    assert starting_model(TrainConfig()) is None
    assert with_starting_model(TrainConfig(), None) == TrainConfig(image_size=64)


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
    ship(begun, "coco80", graph=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coco80").mkdir()
    named, folder = (with_absolute_places(TrainConfig(start_from=start)) for start in ("coco80", "./coco80"))
    assert named.start_from == "coco80"
    assert folder.start_from == str(tmp_path / "coco80")
    start = StartingModel("coco80")
    config = with_starting_model(named, start)
    assert (config.backbone, config.image_size) == ("small", 32)
    written = load_model("coco80")[0].backbone.state_dict()
    assert start.weights.keys() == written.keys()
    for name, weight in start.weights.items():
        assert torch.equal(weight, written[name]), name
    said = start.describe(config, 5)
    assert said.startswith("the backbone small, ")
    assert " million weights, starts from coco80 (trained on 47 classes); images of 32×32 px" in said


def test_another_backbone_is_refused(begun: Path) -> None:
    with pytest.raises(ValueError, match=r"^backbone: expected auto or small, the backbone of .*first, got lite0$"):
        contextcaps.train(start_from=str(begun), **{**SMALL, "backbone": "lite0"})


def test_a_missing_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^nowhere: no such folder"):
        contextcaps.train(start_from="nowhere", **{**SMALL, "backbone": "auto"})


@pytest.mark.parametrize(("first", "second"), [("capsnet", "gap"), ("gap", "capsnet")])
def test_a_backbone_for_another_kind_of_head_is_refused(first: str, second: str, tmp_path: Path) -> None:
    """The paper's second convolution is in the backbone only where the head has no primary capsules."""
    create_model(first, 3, 32, "paper", **({"capsules": {"types": 1}} if first == "capsnet" else {})).save_pretrained(
        tmp_path / "model"
    )
    settings = {**SMALL, "backbone": "auto", "data": "coco:nowhere"}  # refused before the data are opened
    out = tmp_path / "run"
    with pytest.raises(ValueError, match=r"^from: the backbone paper of .*model \(model ") as refused:
        contextcaps.train(start_from=str(tmp_path / "model"), model=second, out=str(out), **settings)
    heads = {"capsnet": "model capsnet, head capsules", "gap": "model gap, head pooling"}
    assert heads[first] in str(refused.value)
    assert heads[second].replace(", ", " (") in str(refused.value)
    assert f"second.weight is {'missing' if second == 'gap' else 'not known'}; train with --model {first} " in str(
        refused.value
    )
    assert not out.exists()
    with pytest.raises(ValueError, match=r"^from: the backbone paper"):
        contextcaps.ablate(
            models=f"{first},{second}", start_from=str(tmp_path / "model"), out=tmp_path / "ablation", seeds=1,
            **{**settings, "data": "scenes?count=60&size=32"},
        )  # fmt: skip
    assert not (tmp_path / "ablation").exists()


def test_a_backbone_with_weights_of_other_shapes_is_refused(begun: Path) -> None:
    start = StartingModel(str(begun))
    fitting = model_config("ml-decoder", 5, 128, "small")
    start.require_fitting(fitting)  # neither another head nor another size matters to it
    with pytest.raises(ValueError, match=r"stem.0.0.weight has shape \[64, 3, 3, 3\], expected \[64, 1, 3, 3\];"):
        start.require_fitting(dataclasses.replace(fitting, in_channels=1, pixel_mean=(0.5,), pixel_std=(0.5,)))


def test_a_model_for_grey_images_is_refused(tmp_path: Path) -> None:
    create_model("gap", 3, 32, "small", in_channels=1).save_pretrained(tmp_path / "grey")
    with pytest.raises(ValueError, match=r"^from: .*grey takes grey images \(1 channel\), but training gives colour"):
        contextcaps.train(start_from=str(tmp_path / "grey"), out=str(tmp_path / "run"), **{**SMALL, "backbone": "auto"})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"^from: expected a model, got an empty name; name one such as coco80, or le"):
        TrainConfig(start_from=name)


def test_the_model_is_loaded_once_and_warned_of_once(tmp_path: Path, monkeypatch, capsys) -> None:
    model, read = tmp_path / "model", []

    def download(name: str, file: str) -> str:
        read.append(file)
        if file == "trained.json":
            raise EntryNotFoundError("404")
        return str(model / file)

    create_model("gap", 3, 32, "small").save_pretrained(model)
    monkeypatch.setattr(hub, "hf_hub_download", download)
    with pytest.raises(ValueError, match="nowhere"):
        contextcaps.train(start_from="hf:ann/scenes", **{**SMALL, "backbone": "auto", "data": "coco:nowhere"})
    assert sorted(read) == ["config.json", "config.json", "model.safetensors", "trained.json"]
    start = StartingModel("hf:ann/scenes")
    config = with_starting_model(TrainConfig(start_from="hf:ann/scenes", model="gap"), start)
    capsys.readouterr()
    assert len(start.weights) > 10
    start.require_fitting(start.config)
    assert "starts from hf:ann/scenes; images of 32×32 px" in start.describe(config, 4)
    assert capsys.readouterr().err.count("warning: hf:ann/scenes: nothing says that this model was ever trained") == 1

"""Models that are part of the package: shipping one, listing them, loading them by name, and errors."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import safetensors.torch
import torch

import contextcaps
from contextcaps.models import CapsuleNetwork, ModelFileError
from contextcaps.models.loading import load_model, shipped_folder, shipped_names
from contextcaps.models.shipped import Measured, list_shipped, ship
from contextcaps.models.trained import Trained

NAMES = ("bed", "lamp", "sea")


@pytest.fixture
def run(tmp_path):
    """A run's folder with a trained model, whose data lie on this machine."""
    torch.manual_seed(0)
    folder = tmp_path / "first" / "model"
    network = contextcaps.create_model("gap", 3, 32, "small", class_names=NAMES)
    network.save_pretrained(folder)
    places = {"data": "coco:/home/ann/coco?split=train", "val_data": "table:/home/ann/mine.csv"}
    Trained((0.5,) * 3, (0.1,) * 3, seed=1, epoch=2, metrics={"val_mAP": 0.7}, **places).write(folder, network.config)
    return folder.parent


def test_a_shipped_model_is_small_and_tells_nothing_of_this_machine(run, shipped) -> None:
    found = ship(run, "coco80", graph=False)
    assert found.folder == shipped / "coco80"
    assert sorted(os.listdir(found.folder)) == ["README.md", "config.json", "model.safetensors", "trained.json"]
    weights = safetensors.torch.load_file(found.folder / "model.safetensors")
    assert weights["head.linear.weight"].dtype == torch.float16
    assert found.size == (found.folder / "model.safetensors").stat().st_size
    texts = [(found.folder / name).read_text() for name in ("README.md", "config.json", "trained.json")]
    assert not any("/home" in text or str(run.parent) in text for text in texts)
    trained = json.loads(texts[-1])
    assert (trained["data"], trained["val_data"]) == ("coco:coco", "table:mine.csv")
    assert "| trained on | coco:coco |" in texts[0]


def test_it_is_listed_and_loaded_by_its_name(run, shipped) -> None:
    assert list_shipped() == []
    ship(run, "other", graph=False)
    ship(run / "model", "coco80", graph=False)
    assert shipped_names() == ["coco80", "other"]
    first = list_shipped()[0]
    assert (first.name, first.config.class_names, first.licence) == ("coco80", NAMES, "apache-2.0")
    assert first.measured == Measured("table:mine.csv", 0.7)  # not a part of the training data
    images = torch.rand(1, 3, 32, 32)
    expected = load_model(run)[0](images).scores
    for network, trained in (load_model(), load_model("coco80")):
        torch.testing.assert_close(network(images).scores, expected, rtol=0, atol=1e-3)
        assert trained is not None
    assert contextcaps.load(device="cpu").classes == NAMES
    assert contextcaps.load("other", "cpu").classes == NAMES


def test_a_folder_of_the_same_name_is_reached_as_a_path(run, shipped, tmp_path, monkeypatch) -> None:
    ship(run, "coco80", graph=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    contextcaps.create_model("gap", 2, 32, "small", class_names=("a", "b")).save_pretrained("coco80")
    assert contextcaps.load("coco80", "cpu").classes == NAMES
    assert contextcaps.load("./coco80", "cpu").classes == ("a", "b")
    assert shipped_folder(shipped / "coco80") is None
    assert shipped_folder("") is shipped_folder(".") is shipped_folder("..") is None


def test_the_figures_of_both_parts(run, shipped) -> None:
    path = ship(run, "coco80", graph=False).folder / "figures.json"
    held_out = '"held_out": {"data": "some of train2017", "mAP": 0.696, "interval": [0.686, 0.704]}'
    test = '"test": {"data": "val2017", "mAP": 0.7, "interval": [0.69, 0.71]}'
    expected = Measured("some of train2017", 0.696, (0.686, 0.704)), Measured("val2017", 0.7, (0.69, 0.71))
    left = Measured("table:mine.csv", 0.7)
    for text, figures in (
        (f"{{{held_out}, {test}}}", expected),
        (f"{{{held_out}}}", (expected[0], None)),
        (f"{{{test}}}", (left, expected[1])),
        ("{}", (left, None)),
    ):
        path.write_text(text)
        (found,) = list_shipped()
        assert (found.held_out, found.test) == figures


def test_the_figures_of_a_test(run, shipped) -> None:
    path = ship(run, "coco80", graph=False).folder / "figures.json"
    path.write_text('{"test": {"data": "val2017", "mAP": 0.78, "interval": [0.77, 0.79]}}')
    assert list_shipped()[0].measured == Measured("val2017", 0.78, (0.77, 0.79))
    for text, message in (
        ("{", "figures.json: expected {"),
        ("[]", "figures.json: expected {"),
        ('{"test": 0.7}', "figures.json: expected {"),
        ('{"heldout": {"data": "val2017", "mAP": 0.78, "interval": [0.77, 0.79]}}', "there is no 'heldout'"),
        ('{"held_out": {"data": "x", "mAP": 2, "interval": [1, 3]}}', "held_out: expected shares from 0 to 1"),
        ('{"test": {"data": "val2017", "mAP": 0.78}}', "'interval'"),
        ('{"test": {"data": "val2017", "mAP": 78, "interval": [77, 79]}}', r"shares from 0 to 1, .* got 78.0 in"),
        ('{"test": {"data": "val2017", "mAP": 0.7, "interval": [0.77, 0.79]}}', "the mAP within its interval, got 0.7"),
    ):
        path.write_text(text)
        with pytest.raises(ModelFileError, match=message):
            list_shipped()


def test_a_card_that_somebody_wrote_goes_with_it(run, shipped) -> None:
    (run / "model" / "README.md").write_text("---\nlicense: mit\n---\nOf my own.\n")
    found = ship(run, "coco80", graph=False)
    assert (found.folder / "README.md").read_text().endswith("Of my own.\n")
    assert found.licence == "mit"


def test_what_is_not_shipped(run, shipped) -> None:
    with pytest.raises(ValueError, match=r"^name: expected small letters"):
        ship(run, "../coco80", graph=False)
    with pytest.raises(ModelFileError, match=r"nowhere: no such folder"):
        ship("./nowhere", "coco80", graph=False)
    ship(run, "coco80", graph=False)
    with pytest.raises(ValueError, match="coco80: is there already; remove it first"):
        ship(run, "coco80", graph=False)
    (run / "model" / "trained.json").unlink()
    with pytest.raises(ValueError, match="nothing says that it was trained"):
        ship(run, "untrained", graph=False)


def test_a_weight_that_does_not_fit_leaves_nothing(run, shipped) -> None:
    network = CapsuleNetwork.from_pretrained(run / "model")
    with torch.no_grad():
        network.head.linear.bias[0] = 1e6
    network.save_pretrained(run / "model")
    with pytest.raises(ValueError, match=r"the weight head\.linear\.bias has a value of 1e\+06"):
        ship(run, "coco80", graph=False)
    assert os.listdir(shipped) == []


def test_without_a_shipped_model_the_error_says_so(shipped, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFileError, match=r"coco80: no such folder, and this copy of contextcaps was ins"):
        contextcaps.load()
    shutil.rmtree(shipped)
    assert list_shipped() == []
    with pytest.raises(ModelFileError, match=r"^nothing: no such folder; expected that of a run or of a model$"):
        contextcaps.load("nothing")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("coco8", r"did you mean 'coco80'\?"),
        ("frist", r"did you mean runs/first\?"),
        ("zebra", "expected that of a run"),
    ],
)
def test_an_unknown_name_is_told_what_there_is(name, hint, run, shipped, monkeypatch, tmp_path) -> None:
    ship(run, "coco80", graph=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    shutil.copytree(run, "runs/first")
    with pytest.raises(
        ModelFileError, match=rf"^{name}: no such folder, nor a shipped model \(there is coco80\); {hint}"
    ) as error:
        contextcaps.load(name)
    assert "\n" not in str(error.value)


@pytest.mark.long
def test_the_command_that_ships() -> None:
    words = [sys.executable, "-m", "contextcaps.models.shipped", "nowhere/at/all", "other"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "contextcaps: nowhere/at/all: no such folder; expected that of a run or of a model\n"

"""What training leaves beside a network: the same after reading, clear errors for damage, and the model card."""

import dataclasses
import json
import shutil

import pytest
import torch

import contextcaps
from contextcaps.models import ModelFileError, create_model
from contextcaps.models.score_bands import ScoreBand, ScoreBands
from contextcaps.models.sections import CalibrationConfig
from contextcaps.models.trained import TRAINED_FILE, Trained

NAMES = ("bed", "lamp", "sea|side")
TRAINED = Trained(
    thresholds=(0.25, 0.125, 1),
    frequencies=(0.5, 0.125, 0),
    seed=11,
    data="coco:photos",
    epoch=4,
    metrics={"val_mAP": 0.423, "prior_mAP": 0.0591, "val_loss": 1.5},
    versions={"contextcaps": "0.1"},
    score_bands=ScoreBands((ScoreBand(0.5, 60, 45), ScoreBand(0.0, 900, 12))),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    network = create_model("contextcaps", 3, 32, "small", capsules={"types": 2}, class_names=NAMES)
    network.save_pretrained(tmp_path_factory.mktemp("trained") / "model")
    return network, tmp_path_factory.getbasetemp() / "trained0" / "model"


@pytest.fixture
def folder(model, tmp_path):
    shutil.copytree(model[1], tmp_path / "model")
    return tmp_path / "model"


def test_what_is_written_is_read(model, folder) -> None:
    assert Trained.read(folder, model[0].config) is None
    for trained in (TRAINED, dataclasses.replace(TRAINED, val_data="coco:others")):
        trained.write(folder, model[0].config)
        found = Trained.read(folder, model[0].config)
        assert found == trained
        assert {type(value) for value in (*found.thresholds, *found.frequencies)} == {float}
    assert {path.name for path in folder.iterdir()} == {"README.md", "config.json", "model.safetensors", TRAINED_FILE}


def test_the_card_says_what_it_is(model, folder) -> None:
    front = (folder / "README.md").read_text().split("---\n")[1]
    TRAINED.write(folder, model[0].config)
    card = (folder / "README.md").read_text()
    assert card.startswith(f"---\n{front}---\n")
    assert "license: apache-2.0" in front
    for text in (
        "# contextcaps, trained",
        "| classes | 3: bed, lamp, sea\\|side |",
        "| trained on | coco:photos |",
        "| validated on | a part of it |",
        "| seed | 11 |",
        "| lowest score of a tag | 0.125, unless another threshold is asked for |",
        "42.3 %; constant scores, which never look at the image, have 5.9 %",
        "contextcaps.load(",
        "contextcaps tag IMAGES... --model ",
    ):
        assert text in card


def test_the_card_says_whether_classes_have_thresholds_of_their_own(model) -> None:
    card = TRAINED.card(model[0].config)
    assert "from a threshold of its own, tuned on the validation images." in card
    assert "one threshold for all classes, " not in card
    card = dataclasses.replace(TRAINED, thresholds=(0.328125,) * 3).card(model[0].config)
    assert "class counts as present from 0.328 on, one threshold for all classes, tuned on the valid" in card
    assert "of its own" not in card


def test_the_card_says_how_scores_are_calibrated(model) -> None:
    config = dataclasses.replace(model[0].config, calibration=CalibrationConfig(1.25, -0.5))
    text = "| scores | sigmoid(1.25 × logit − 0.5), fitted on the validation images"
    assert f"{text} |" in TRAINED.card(config)
    errors = {"val_ECE": 0.0123, "val_ECE_before": 0.0567}
    card = dataclasses.replace(TRAINED, metrics=errors).card(config)
    assert f"{text}; expected calibration error there 1.23 %, 5.67 % before calibration |" in card
    assert "| scores |" not in TRAINED.card(model[0].config)


def test_the_card_has_no_folders_of_this_machine(model, tmp_path) -> None:
    home = "table:/home/ann/labels.csv?root=/home/ann/photos"
    card = dataclasses.replace(TRAINED, data=home, val_data="coco:/home/ann/coco").card(model[0].config)
    assert "/home" not in card
    assert "| trained on | table:labels.csv |" in card
    assert "| validated on | coco:coco |" in card
    assert "Nothing is said here" not in card


def test_a_file_without_bands_is_read(model, folder) -> None:
    TRAINED.write(folder, model[0].config)
    document = json.loads((folder / TRAINED_FILE).read_text())
    del document["score_bands"]
    (folder / TRAINED_FILE).write_text(json.dumps(document))
    found = Trained.read(folder, model[0].config)
    assert found == dataclasses.replace(TRAINED, score_bands=ScoreBands())


def test_the_card_of_a_new_export_replaces_ours_but_nobody_elses(model, folder) -> None:
    network = model[0]
    TRAINED.write(folder, network.config)
    network.save_pretrained(folder)
    dataclasses.replace(TRAINED, seed=12).write(folder, network.config)
    assert "| seed | 12 |" in (folder / "README.md").read_text()
    untrained = (model[1] / "README.md").read_text()
    for text in ("My model\n", "---\nlicense: mit\n---\nMy model\n---\n", untrained + "But I know.\n", ""):
        (folder / "README.md").write_text(text)
        TRAINED.write(folder, network.config)
        assert (folder / "README.md").read_text() == text
    (folder / "README.md").write_bytes(b"\xff\xfe")
    TRAINED.write(folder, network.config)
    assert (folder / "README.md").read_bytes() == b"\xff\xfe"


def test_many_classes_are_not_all_in_the_card() -> None:
    config = contextcaps.ModelConfig(150)
    trained = Trained((0.5,) * 150, (0.1,) * 150, 0, "x", 1)
    assert "| 150: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … |" in trained.card(config)
    assert "mAP" not in trained.card(config)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("thresholds", {"bed": 0.5, "lamp": "0.5", "sea|side": 0.5}, r"thresholds: lamp: .* from 0 to 1, got '0.5'"),
        ("thresholds", {"bed": 0.5, "lamp": 0.5, "sea|side": True}, r"thresholds: sea\|side: expected .* got True"),
        ("thresholds", {"bed": 1.5, "lamp": 0.5, "sea|side": 0.5}, "thresholds: bed: expected .* got 1.5"),
        ("thresholds", {"bed": None, "lamp": 0.5, "sea|side": 0.5}, "thresholds: bed: expected .* got None"),
        ("frequencies", {"bed": float("nan"), "lamp": 0.5, "sea|side": 0.5}, "frequencies: bed: expected .* got nan"),
        ("frequencies", {"bed": 0.5}, "its classes are not those of the network"),
        ("frequencies", [0.5, 0.5, 0.5], "its classes are not those of the network"),
        ("thresholds", 3, "cut off or not written by contextcaps"),
        ("seed", "eleven", "seed: expected a whole number, got 'eleven'"),
        ("epoch", 1.5, "epoch: expected a whole number, got 1.5"),
        ("epoch", True, "epoch: expected a whole number, got True"),
        ("data", None, "data: expected a name, got None"),
        ("val_data", 3, "val_data: expected a name or null, got 3"),
        ("metrics", [1], r"metrics: expected names and values, got \[1\]"),
        ("versions", "1.0", "versions: expected names and values, got '1.0'"),
        (
            "score_bands",
            [{"lowest": 0.0, "pairs": 3, "present": 4}],
            "cut off or not written by .*at least 50",
        ),
        ("score_bands", [{"lowest": 0.5, "pairs": 90, "present": 4}], "cut off or not written by .*the last from 0 on"),
        ("score_bands", 7, "cut off or not written by contextcaps"),
        ("moon", 1, "cut off or not written by contextcaps"),
    ],
)
def test_damaged_values(model, folder, field, value, message) -> None:
    TRAINED.write(folder, model[0].config)
    document = json.loads((folder / TRAINED_FILE).read_text())
    (folder / TRAINED_FILE).write_text(json.dumps({**document, field: value}))
    with pytest.raises(ModelFileError, match=rf"trained\.json: .*{message}"):
        Trained.read(folder, model[0].config)


@pytest.mark.parametrize("content", [b"", b"[]", b"3", b"{}", b"\xff", b'{"thresholds": {"bed"', b"[" * 100_000])
def test_damaged_files(model, folder, content) -> None:
    (folder / TRAINED_FILE).write_bytes(content)
    with pytest.raises(ModelFileError, match=r"trained\.json: cut off or not written by contextcaps") as caught:
        Trained.read(folder, model[0].config)
    assert "\n" not in str(caught.value)

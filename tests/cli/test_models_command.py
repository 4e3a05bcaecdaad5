"""contextcaps models: the list, one model step by step, all of them."""

import shutil
from pathlib import Path

import pytest

import contextcaps
from contextcaps.cli import main
from contextcaps.models import loading
from contextcaps.models.shipped import ship
from contextcaps.models.trained import Trained


@pytest.fixture
def coco80(shipped, tmp_path) -> Path:
    """Ship a small model of this name, and return its folder."""
    network = contextcaps.create_model("gap", 2, 32, "small", class_names=("zebra", "cup"))
    network.save_pretrained(tmp_path / "made")
    trained = Trained((0.5,) * 2, (0.1,) * 2, seed=1, data="coco:here", epoch=2, metrics={"val_mAP": 0.712})
    trained.write(tmp_path / "made", network.config)
    return ship(tmp_path / "made", "coco80", graph=False).folder


def test_models_lists_the_shipped_ones_first(coco80, capsys) -> None:
    main(["models"])
    printed = capsys.readouterr().out
    assert printed.index("32×32 px") < printed.index("capsnet-rw-crf")
    assert "71.2 %" in printed
    assert "held-out part of coco:here" in printed
    (coco80 / "figures.json").write_text('{"test": {"data": "val2017", "mAP": 0.7, "interval": [0.69, 0.71]}}')
    main(["models"])
    printed = capsys.readouterr().out
    assert "70.0 % [69.0, 71.0]  val2017" in printed


def test_models_shows_a_shipped_one(coco80, capsys) -> None:
    main(["models", "coco80"])
    printed = capsys.readouterr().out
    for text in ("coco80: gap, trained", "backbone small", "2: zebra, cup", "71.2 % on held-out part", "apache-2.0"):
        assert text in printed
    for words, message in (
        ("coco80 --classes 3 --backbone small", "--classes, --backbone: coco80 is trained"),
        ("zebra", "model: there is no 'zebra'; known are coco80, capsnet,"),
        ("coco8", "there is no 'coco8'; did you mean 'coco80'? Known are coco80, capsnet,"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["models", *words.split()])
        assert stop.value.code == 2
        assert message in capsys.readouterr().err


def test_a_name_in_capitals_is_unknown_also_where_the_file_system_finds_its_folder(coco80, capsys, monkeypatch) -> None:
    if not coco80.with_name("COCO80").exists():
        shutil.copytree(coco80, coco80.with_name("COCO80"))
        monkeypatch.setattr(loading, "shipped_names", lambda: ["coco80"])
    with pytest.raises(SystemExit) as stop:
        main(["models", "COCO80"])
    assert stop.value.code == 2
    assert "model: there is no 'COCO80'; did you mean 'coco80'? Known are coco80," in capsys.readouterr().err


def test_models_lists_the_presets(shipped, capsys) -> None:
    main(["models"])
    printed = capsys.readouterr().out
    assert "installed without a shipped model" in printed
    assert "capsnet-rw-crf" in printed
    assert "capsnet-rw-crf-corr-literal" in printed


def test_models_shows_one_step_by_step(capsys) -> None:
    main(["models", "contextcaps-rw-crf-corr", "--classes", "7", "--image-size", "32", "--backbone", "small"])
    printed = capsys.readouterr().out
    for word in ("primary capsules", "RW as gate", "CRF, centred", "CORR weights", "256 × 7 × 16", "forward pass"):
        assert word in printed


def test_models_with_and_without_a_forward_pass(capsys) -> None:
    small = ["--classes", "3", "--image-size", "32", "--backbone", "small"]
    shown = {}
    for words in ("capsnet", "capsnet --no-forward", "--all --no-forward", "--no-forward"):
        main(["models", *words.split(), *small])
        printed = capsys.readouterr().out
        shown[words] = (printed.count("in all"), printed.count("forward pass:"))
    every = len(contextcaps.list_models())
    assert shown["capsnet"] == (1, 1)
    assert shown["capsnet --no-forward"] == (1, 0)
    assert shown["--all --no-forward"] == (every, 0)
    assert shown["--no-forward"] == (0, 0)
    with pytest.raises(SystemExit) as stop:
        main(["models", "capsnet", "--all"])
    assert stop.value.code == 2
    assert "--all and capsnet: expected one of them" in capsys.readouterr().err

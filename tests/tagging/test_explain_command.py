"""contextcaps explain: text, JSON, a page, files, what if, relations; one line and an exit code for mistakes."""

import functools
import json

import numpy as np
import pytest
import torch

import contextcaps
from contextcaps.models.shipped import ship
from contextcaps.models.trained import Trained
from in_process import run_command

CLASSES = ("sky", "sea", "tree, old", "road", "car")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A model's folder whose network has a field with potentials."""
    torch.manual_seed(3)
    network = contextcaps.create_model("contextcaps", 5, 32, "small", capsules={"types": 2}, class_names=CLASSES)
    with torch.no_grad():
        network.field.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    folder = tmp_path_factory.mktemp("run") / "model"
    network.save_pretrained(folder)
    Trained((0.9, 0.05, 0.125, 0.0, 1.0), (0.1,) * 5, seed=7, data="scenes", epoch=1).write(folder, network.config)
    return folder


run = functools.partial(run_command, "explain")


def test_a_pipe_gets_json_that_sums(told, album, capsys) -> None:
    code, out, err = run([album / "0.png", "--model", told, "--classes", "car,tree, old"], capsys)
    assert (code, err) == (0, "")
    (line,) = out.splitlines()
    document = json.loads(line)
    assert document["image"] == str(album / "0.png")
    assert {"car", "tree, old"} <= {each["name"] for each in document["classes"]}
    for each in document["classes"]:
        parts = each["parts"]
        total = np.sum(parts["evidence"]) + np.sum(parts["branch"])
        total += sum(parts["messages"].values()) + sum(parts["constants"].values())
        assert total == pytest.approx(each["logit"], abs=1e-4)


def test_a_person_gets_sentences(told, album, capsys) -> None:
    words = [album / "0.png", "--model", told, "--format", "text", "--known", "sea=yes", "--classes", "car"]
    code, out, err = run(words, capsys)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == str(album / "0.png")
    assert lines[1].startswith("  sea given as present: the image ")
    assert any(line.startswith("  car 0.") and ", below 1.00: the image " in line for line in lines)
    assert "what sea=yes moves" in lines


def test_files_and_a_page(told, album, tmp_path, capsys) -> None:
    page, out = tmp_path / "why.html", tmp_path / "out"
    words = [album / "0.png", "--model", told, "--html", page, "--out", out, "--relations", tmp_path / "graph.svg"]
    code, printed, err = run(words, capsys)
    assert (code, printed) == (0, "")
    assert "graph.svg shows " in err
    assert f"Tagged by {told} (contextcaps)." in page.read_text("utf-8")
    assert (tmp_path / "graph.svg").read_text("utf-8").startswith("<svg xmlns=")
    document = json.loads((out / "explanation.json").read_text("utf-8"))
    names = [each["name"] for each in document["classes"]]
    assert len(list(out.glob("*.png"))) == len(names)
    again = run([*words, "--format", "json"], capsys)
    assert json.loads(again[1]) == document


def test_relations_need_no_image(told, tmp_path, capsys) -> None:
    code, out, _ = run(["--model", told, "--relations", tmp_path / "graph.svg"], capsys)
    assert (code, out) == (0, "")
    assert (tmp_path / "graph.svg").exists()


def test_relations_beside_those_of_labels(told, tmp_path, capsys) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    table = tmp_path / "labels.csv"
    table.write_text('path,sky,sea,"tree, old",road,car\n0.png,1,1,0,0,0\n', "utf-8")
    words = ["--model", told, "--relations", tmp_path / "graph.svg", "--data"]
    assert run([*words, f"table:{table}"], capsys)[0] == 0
    assert "of labels alone: table:labels.csv" in (tmp_path / "graph.svg").read_text("utf-8")
    code, _, err = run([*words, "scenes?count=20&size=32"], capsys)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "expected the model's 5 classes" in err


def test_without_a_name_the_shipped_model_explains(told, album, shipped, capsys) -> None:
    ship(told, "coco80", graph=False)
    code, out, _ = run([album / "0.png"], capsys)
    assert code == 0
    assert json.loads(out)["classes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["PHOTO", "--classes", "see"], "classes: the model has no class 'see'; did you mean 'sea'?"),
        (["PHOTO", "--known", "sea"], "known: expected CLASS=yes or CLASS=no"),
        (["PHOTO", "--known", "zebra=yes"], "known: the model has no class 'zebra'"),
        (["gone.jpg"], "gone.jpg: "),
        (["FOLDER"], "a folder, not an image"),
        (["coco80"], "coco80: a shipped model; explain with it: --model coco80"),
        (["TORN"], "1-cut.jpg: damaged or truncated image"),
        ([], "no image: expected the file to explain"),
        (["--relations", "x.svg", "--classes", "sea"], "no image: expected the file to explain with --classes"),
        (["PHOTO", "--relations", "x.png"], "expected the name of an SVG file, such as graph.svg"),
        (["PHOTO", "--data", "scenes"], "--data: expected --relations beside it"),
        (["PHOTO", "--html", "x.png"], "expected the name of a page to write"),
        (["PHOTO", "--html", "nowhere/x.html"], "its folder is not there"),
        (["PHOTO", "--out", "PHOTO"], "expected a folder, got a file"),
        (["PHOTO", "--out", "nowhere/folder"], "its folder is not there"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(words, message, told, album, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"PHOTO": album / "0.png", "TORN": album / "1-cut.jpg", "FOLDER": album}
    code, out, err = run(["--model", told, *(places.get(word, word) for word in words)], capsys)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["album"]


def test_models_that_cannot_explain_are_one_line(model, album, tmp_path, capsys) -> None:
    code, _, err = run([album / "0.png", "--model", model, "--known", "sea=yes"], capsys)
    assert code == 2
    assert "field=default" in err
    code, _, err = run(["--model", model, "--relations", tmp_path / "x.svg"], capsys)
    assert code == 2
    assert "relations: this model (capsnet) has no field" in err
    contextcaps.create_model("query2label", 3, 32, "small", query2label={"width": 8}).save_pretrained(tmp_path / "q")
    code, _, err = run([album / "0.png", "--model", tmp_path / "q"], capsys)
    assert code == 2
    assert "explain: the scores of the head query2label are no exact sum" in err.splitlines()[-1]

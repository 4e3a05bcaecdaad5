"""What to ask of images: open labels are asked and the others told, for one image and for a source, in every form."""

import csv
import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import contextcaps
from contextcaps.data import open_source
from contextcaps.data.problems import DataError
from contextcaps.models.expected_drops import expected_drops
from contextcaps.models.trained import Trained
from contextcaps.tagging import Tagger, ask_image, ask_labels, write_questions
from in_process import run_command

CLASSES = ("sky", "sea", "tree, old", "<b>road</b>")
IMAGES = ("0.png", "1, 2.png", "<script>.png")
run = functools.partial(run_command, "audit")


def tagger_of(name: str = "contextcaps") -> Tagger:
    torch.manual_seed(3)
    size = {"capsules": {"types": 2}} if "caps" in name else {}
    network = contextcaps.create_model(name, 4, 32, "small", **size, class_names=CLASSES)
    if network.field is not None:
        with torch.no_grad():
            network.field.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    return Tagger(network, device="cpu")


def save(tagger: Tagger, folder: Path) -> Path:
    tagger.network.save_pretrained(folder)
    Trained((0.5,) * 4, (0.1,) * 4, seed=7, data="scenes", epoch=1).write(folder, tagger.network.config)
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three images; of the first two labels are open, of the second one, of the third none."""
    folder = tmp_path / "data"
    folder.mkdir()
    random = np.random.default_rng(5)
    for name in IMAGES:
        Image.fromarray(random.integers(0, 255, (32, 32, 3)).astype(np.uint8)).save(folder / name)
    rows = [
        ("path", *reversed(CLASSES)),
        (IMAGES[0], "?", 1, "?", 0),
        (IMAGES[1], 0, 0, 0, "?"),
        (IMAGES[2], 1, 0, 0, 0),
    ]
    with (folder / "labels.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / "labels.csv"


def test_open_labels_are_asked_and_the_others_told(table) -> None:
    source, tagger = open_source(f"table:{table}?unlabelled=keep"), tagger_of()
    found = ask_labels(source, tagger)
    assert found.told
    assert [image for image, _ in found.images] == list(IMAGES[:2])
    for index, (_, asked) in enumerate(found.images):
        sample = source.sample(index)
        known = {name: k in sample.labels for k, name in enumerate(source.classes) if k not in sample.unknown}
        alone = ask_image(tagger, sample.image, known=known)
        assert [each.name for each in asked] == [each.name for each in alone]
        assert {each.name for each in asked} == {source.classes[k] for k in sample.unknown}
        assert [each.settles for each in asked] == pytest.approx([each.settles for each in alone], abs=1e-5)
        assert [each.settles for each in asked] == sorted((each.settles for each in asked), reverse=True)
    assert all(len(asked) == 1 for _, asked in ask_labels(source, tagger, 1).images)


def test_without_an_open_label_nothing_is_told(table) -> None:
    table.write_text(table.read_text("utf-8").replace("?", "0"), "utf-8")
    source, tagger = open_source(f"table:{table}?unlabelled=keep"), tagger_of()
    found = ask_labels(source, tagger, 3)
    assert not found.told
    for index, (_, asked) in enumerate(found.images):
        pixels = torch.from_numpy(np.asarray(Image.open(source.sample(index).image)).transpose(2, 0, 1)[None].copy())
        drops, scores = expected_drops(tagger.network, tagger.features(pixels), torch.full((1, 4), math.nan))
        order = drops[0].argsort(descending=True)[:3].tolist()
        assert [each.name for each in asked] == [CLASSES[k] for k in order]
        assert [each.score for each in asked] == pytest.approx(scores[0, order].tolist(), abs=1e-5)


def test_files_have_every_question(table, tmp_path) -> None:
    found = ask_labels(open_source(f"table:{table}?unlabelled=keep"), tagger_of())
    expected = [(image, each.name, round(each.settles, 6)) for image, asked in found.images for each in asked]
    write_questions(found, tmp_path / "ask.csv")
    rows = list(csv.DictReader((tmp_path / "ask.csv").open(encoding="utf-8", newline="")))
    assert [(row["image"], row["class"], float(row["settles"])) for row in rows] == expected
    write_questions(found, tmp_path / "ask.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "ask.jsonl").read_text("utf-8").splitlines()]
    assert [(line["image"], each["class"], each["settles"]) for line in lines for each in line["ask"]] == expected


def test_the_command(table, tmp_path, capsys) -> None:
    model = save(tagger_of(), tmp_path / "model")
    words = ["--data", f"table:{table}?unlabelled=keep", "--model", model, "--ask", "2", "--quiet"]
    code, printed, err = run([*words, "--out", tmp_path / "ask.csv"], capsys)
    assert (code, err) == (0, "")
    assert "What to ask of each image" in printed
    assert printed.rstrip().endswith("ask.csv: 3 labels")
    for more, message in (
        (["--html", "x.html"], "--html: expected nothing of the audit beside --ask"),
        (["--folds", "3"], "--folds: expected nothing of the audit beside --ask"),
        (["--out", "x.txt"], "such as labels.csv or labels.jsonl"),
    ):
        code, printed, err = run([*words, *more], capsys)
        assert (code, printed, len(err.splitlines())) == (2, "", 1)
        assert message in err
    words[5] = "0"
    code, _, err = run(words, capsys)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "ask: expected at least 1" in err


def test_mistakes(table, tmp_path, capsys) -> None:
    model = save(tagger_of("gap"), tmp_path / "model")
    words = ["--data", f"table:{table}?unlabelled=keep", "--model", model, "--ask", "2", "--quiet"]
    code, _, err = run(words, capsys)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "field=default" in err
    (tmp_path / "words.jpg").write_bytes(b"words")
    with pytest.raises(DataError, match=r"words\.jpg"):
        ask_image(tagger_of(), tmp_path / "words.jpg")
    with pytest.raises(ValueError, match="no class 'zebra'"):
        ask_image(tagger_of(), table.with_name("0.png"), known={"zebra": True})

"""Tagging with labels that somebody knows: from words, from Python, and in every format."""

import csv
import json
import math

import numpy as np
import pyarrow.parquet
import pytest
import torch
from test_tag_command import _run

import contextcaps
from contextcaps.models.trained import Trained
from contextcaps.tagging import Tagger, load, parse_known
from contextcaps.tagging.known import known_row, spell_known

CLASSES = ("sky", "sea", "tree, old", "road", "car")
THRESHOLDS = (0.9, 0.05, 0.125, 0.0, 1.0)


@pytest.fixture(scope="module", params=["field", "c-tran"])
def told(request, tmp_path_factory):
    """A model's folder whose network has a field with potentials, or is told labels by its head."""
    torch.manual_seed(3)
    own = {"c_tran.width": 16}
    if request.param == "field":
        own = {"capsules.types": 2, "field": {}}
    name = "capsnet" if request.param == "field" else request.param
    network = contextcaps.create_model(name, 5, 32, "small", class_names=CLASSES, **own)
    if network.field is not None:
        with torch.no_grad():
            network.field.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    folder = tmp_path_factory.mktemp("run") / "model"
    network.save_pretrained(folder)
    Trained(THRESHOLDS, (0.1,) * 5, seed=7, data="scenes", epoch=1).write(folder, network.config)
    return folder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("oven=yes", {"oven": True}),
        (" oven = YES , bed=no,", {"oven": True, "bed": False}),
        ("chair, folding=no,a=b=true", {"chair, folding": False, "a=b": True}),
        ("sea=1,sky=0,car=present,tree=absent", {"sea": True, "sky": False, "car": True, "tree": False}),
        ("oven=yes,oven=yes", {"oven": True}),
        ("oven=yes,, bed=no", {"oven": True, "bed": False}),
        (",oven=yes, ,", {"oven": True}),
    ],
)
def test_words_are_read(text, expected) -> None:
    assert parse_known(text) == expected
    assert parse_known(spell_known(expected)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got nothing"),
        ("oven", "expected CLASS=yes or CLASS=no with commas between them, got 'oven'"),
        ("oven=yes,bed=maybe", "got 'bed=maybe'"),
        ("=yes", "got '=yes'"),
        ("oven=yes,oven=no", "'oven' is said to be present and absent"),
    ],
)
def test_wrong_words_are_refused(text, message) -> None:
    with pytest.raises(ValueError, match="known: ") as caught:
        parse_known(text)
    assert message in str(caught.value)


def test_unknown_classes_are_refused_with_the_nearest() -> None:
    row = known_row({"sea": True, "car": False}, CLASSES)
    np.testing.assert_array_equal(row, np.array([math.nan, 1, math.nan, math.nan, 0], np.float32))
    with pytest.raises(ValueError, match=r"known: the model has no class 'see'; did you mean 'sea'\?"):
        known_row({"see": True}, CLASSES)
    with pytest.raises(ValueError, match="known: the model has no class 'zebra'; it knows sky, sea"):
        known_row({"zebra": True}, CLASSES)
    with pytest.raises(ValueError, match="known: sea: expected True or False, got 'yes'"):
        known_row({"sea": "yes"}, CLASSES)


def test_python_tags_with_known_labels(told, pictures) -> None:
    tagger = load(told, "cpu")
    known = {"car": True, "road": False}
    images = torch.from_numpy(pictures).permute(0, 3, 1, 2)
    with torch.no_grad():
        row = torch.tensor([math.nan, math.nan, math.nan, 0.0, 1.0]).expand(len(images), -1)
        expected = tagger.network(images, known=row).scores
    plain = tagger.tag(pictures)
    for tagging, before, scores in zip(tagger.tag(pictures, known=known, batch_size=3), plain, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(tagging.scores), scores)
        assert not np.allclose(tagging.scores[:3], before.scores[:3])
        assert tagging.given == known
        assert tagging.tags[0].name == "car"
        assert (tagging.tags[0].score, tagging.tags[0].given) == (1.0, True)
        assert "road" not in [tag.name for tag in tagging.tags]  # though its threshold is 0
        assert not any(tag.given for tag in tagging.tags[1:])
        assert before.given == {}
    assert {tag.name for tag in tagger.tag(pictures[0], known=known, threshold=0)[0].tags} == {*CLASSES} - {"road"}


def test_a_model_that_cannot_be_told_says_which_can(network, pictures) -> None:
    with pytest.raises(ValueError, match=r"known: .*--model c-tran.*field=default"):
        Tagger(network, device="cpu").tag(pictures, known={"sea": True})
    assert Tagger(network, device="cpu").tag(pictures[0], known={})


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_every_format_says_what_was_given(form, told, album, tmp_path, capsys) -> None:
    out = tmp_path / f"tags.{form}"
    code, _, _ = _run(
        ["--model", told, album / "0.png", "gone.jpg", "--known", "sea=yes,tree, old=no", "--out", out], capsys
    )
    assert code == 1
    if form == "jsonl":
        first, second = map(json.loads, out.read_text().splitlines())
        assert first["given"] == {"sea": True, "tree, old": False}
        assert {"name": "sea", "score": 1.0, "given": True} in first["tags"]
        assert sum("given" in tag for tag in first["tags"]) == 1
        assert "given" not in second
    elif form == "csv":
        with out.open(newline="") as file:
            first, second = csv.DictReader(file)
        assert first["given"] == "sea=yes, tree, old=no"
        assert parse_known(first["given"]) == {"sea": True, "tree, old": False}
        assert second["given"] == ""
    else:
        first, second = pyarrow.parquet.read_table(out).to_pylist()
        assert first["given"] == [{"name": "sea", "present": True}, {"name": "tree, old", "present": False}]
        assert second["given"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("see=yes", "did you mean 'sea'?"),
        ("sea", "expected CLASS=yes or CLASS=no"),
    ],
)
def test_misuse_is_one_message_and_exit_code_2(words, message, told, album, capsys) -> None:
    code, out, err = _run(["--model", told, album / "0.png", "--known", words], capsys)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_model_that_cannot_be_told_is_one_message_and_exit_code_2(model, album, capsys) -> None:
    code, out, err = _run(["--model", model, album / "0.png", "--known", "sea=yes"], capsys)
    assert (code, out) == (2, "")
    assert "field=default" in err

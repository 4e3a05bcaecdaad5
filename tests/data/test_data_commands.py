"""`contextcaps data …`: what the commands print and write, and how they refuse."""

import json

import pytest

from contextcaps.cli import main
from contextcaps.data import open_source

SCENES = "scenes?count=30&size=32"


def test_inspect_prints_tables_and_writes_a_page(tmp_path, capsys) -> None:
    main(["data", "inspect", SCENES, "--html", str(tmp_path / "page.html")])
    printed = capsys.readouterr().out
    for words in ("images", "labels per image", "Commonest and rarest", "Strongest co-occurrences", "Page written to"):
        assert words in printed
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_prepare_says_where_the_copy_is(tmp_path, capsys) -> None:
    main(["data", "prepare", SCENES, "--size", "32", "--cache", str(tmp_path)])
    assert "30 images of 32×32 px" in capsys.readouterr().out
    assert len(list(tmp_path.glob("scenes-*"))) == 1


def test_convert_and_back(tmp_path, capsys) -> None:
    main(["data", "convert", SCENES + "&split=test", "--split", "test", "--to", "shards", str(tmp_path / "out")])
    assert "30 samples of test" in capsys.readouterr().out
    source, back = open_source(SCENES, split="test"), open_source(f"shards:{tmp_path}/out/*.tar")
    assert back.classes == source.classes == tuple(json.loads((tmp_path / "out" / "classes.json").read_text()))
    assert [(sample.id, sample.labels) for sample in back] == [(sample.id, sample.labels) for sample in source]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "nonsense:x"], "expected KIND:LOCATION"),
        (["inspect", "coco:/nowhere/at/all"], "coco:/nowhere/at/all"),
        (["inspect", "scenes", "--split", "holiday"], "holiday"),
        (["prepare", SCENES, "--size", "0"], "size"),
        (["prepare", SCENES, "--size", "big"], "size"),
        (["convert", SCENES], "--to"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_misuse_ends_with_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CONTEXTCAPS_CACHE", str(tmp_path))
    with pytest.raises(SystemExit) as stop:
        main(["data", *arguments])
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert message in printed.err
    assert "Traceback" not in printed.err + printed.out


def test_skipped_samples_are_reported(tmp_path, capsys) -> None:
    (tmp_path / "torn.jpg").write_bytes(b"not a picture")
    good = open_source(SCENES)[0]
    from PIL import Image

    Image.fromarray(good.image).save(tmp_path / "good.png")
    (tmp_path / "table.csv").write_text("path,labels\ngood.png,bed\ntorn.jpg,bed\n")
    with pytest.raises(SystemExit) as stop:
        main(["data", "prepare", f"table:{tmp_path}/table.csv", "--cache", str(tmp_path / "cache")])
    assert stop.value.code == 2
    assert "torn.jpg" in capsys.readouterr().err
    main(["data", "prepare", f"table:{tmp_path}/table.csv", "--cache", str(tmp_path / "cache"), "--on-bad", "skip"])
    printed = capsys.readouterr()
    assert "1 images of 64×64 px" in printed.out
    assert "1 left out:" in printed.err
    assert "torn.jpg" in printed.err

"""`contextcaps data …`: what the commands print and write, and how they refuse."""

import json
from pathlib import Path

import pytest
from trees_exports import roboflow_yolo
from trees_small import encoded, shard_members, write_tar
from trees_voc import voc_tree

from contextcaps.cli import main
from contextcaps.data import open_source

SCENES = "scenes?count=30&size=32"


def test_inspect_prints_tables_and_writes_a_page(tmp_path, capsys) -> None:
    main(["data", "inspect", SCENES, "--html", str(tmp_path / "page.html")])
    printed = capsys.readouterr().out
    for words in ("images", "labels per image", "Commonest and rarest", "Strongest co-occurrences", "Page written to"):
        assert words in printed
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_inspect_shows_what_was_assumed_and_what_looks_wrong(tmp_path, capsys) -> None:
    (tmp_path / "a.jpg").write_bytes(encoded(1))
    (tmp_path / "b.jpg").write_bytes(encoded(2))
    (tmp_path / "table.csv").write_text(",path,labels\n0,a.jpg,cups & Knife\n1,b.jpg,knife & cups|fork\n")
    main(["data", "inspect", f"table:{tmp_path}/table.csv", "--html", str(tmp_path / "page.html")])
    printed = " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for words in ("is a row index", "labels are separated by"):
        assert words in printed
        assert words in page
    assert "warning 2 of 3 classes contain" in printed
    assert "<h3>Warnings</h3>" in page


def test_prepare_says_where_the_copy_is(tmp_path, capsys) -> None:
    main(["data", "prepare", SCENES, "--size", "32", "--cache", str(tmp_path)])
    assert "30 images of 32×32 px (split train), " in capsys.readouterr().out
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
        (["convert", SCENES, "--to", "zip", "somewhere"], "expected shards as the format: --to shards somewhere"),
        (["convert", "coco:", "--to", "shards", "somewhere"], "coco:: nothing after the colon"),
        (["inspect", "coco:"], "coco:: nothing after the colon; expected where the data are, such as coco:PATH"),
        (["prepare", "voc:?year=2012"], "nothing after the colon"),
        (["inspect", SCENES, "--html", "no/such/folder/page.html"], "its folder is not there"),
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


def test_convert_writes_the_split_of_the_name_only(tmp_path, capsys) -> None:
    main(["data", "convert", SCENES + "&split=dev", "--to", "shards", str(tmp_path / "out")])
    assert capsys.readouterr().out == f"30 samples of validation in 1 shard under {tmp_path / 'out'}\n"
    assert [path.name for path in (tmp_path / "out").glob("*.tar")] == ["validation-00000.tar"]


def test_convert_tells_of_repeated_and_bad_samples(tmp_path, capsys) -> None:
    root = voc_tree(tmp_path)
    (root / "Annotations" / "000009.xml").unlink()  # of val and trainval: one sample, met three times
    photo = root / "JPEGImages" / "000005.jpg"
    photo.write_bytes(photo.read_bytes()[:-300])
    command = ["data", "convert", f"voc:{root}?unlabelled=keep", "--to", "shards", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 2
    assert "000009" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    main([*command, "--on-bad", "skip"])
    printed = capsys.readouterr()
    assert "1 samples of train in 1 shard under" in printed.out
    assert "0 samples of trainval in 0 shards" in printed.out
    assert "3 more of trainval were met above already and are not written twice" in printed.out
    assert printed.err.startswith("2 left out: voc:")
    assert "2 problems found\n  000009: " in printed.err
    assert "\n  000005: damaged or truncated image" in printed.err


def table_with_torn_image(folder: Path) -> str:
    (folder / "good.jpg").write_bytes(encoded(1))
    (folder / "torn.jpg").write_bytes(encoded(2)[:20])
    (folder / "table.csv").write_text("path,labels\ngood.jpg,bed\ntorn.jpg,bed\nmissing.jpg,bed\n")
    return f"table:{folder}/table.csv"


def test_inspect_prints_everything_and_then_tells_of_problems(tmp_path, capsys) -> None:
    spec = table_with_torn_image(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["data", "inspect", spec, "--html", str(tmp_path / "page.html")])
    stopped = capsys.readouterr()
    assert stop.value.code == 2
    assert stopped.err.splitlines()[-1] == f"contextcaps: 2 problems found in {spec}"
    assert "labels per image" in stopped.out
    assert (tmp_path / "page.html").is_file()
    main(["data", "inspect", spec, "--html", str(tmp_path / "page.html"), "--on-bad", "skip"])
    skipped = capsys.readouterr()
    assert (skipped.out, skipped.err) == (stopped.out, "")


def test_inspect_looks_for_the_folder_of_the_page_first(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(
        "contextcaps.data.source_registry.open_source", lambda *words, **options: pytest.fail("the source was opened")
    )
    for page, what in ((tmp_path, "a file, got a folder"), (tmp_path / "missing" / "page.html", "its folder is not")):
        with pytest.raises(SystemExit) as stop:
            main(["data", "inspect", SCENES, "--html", str(page)])
        assert stop.value.code == 2
        assert f"--html {page}: " in (message := capsys.readouterr().err)
        assert what in message


@pytest.mark.parametrize("command", [["prepare", "--size", "8"], ["convert", "--to", "shards"]])
def test_what_was_assumed_is_said(command, tmp_path, capsys) -> None:
    for name, folder in (("1.png", "Cat"), ("2.png", "cat"), ("3.png", "dog")):
        (tmp_path / "pets" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "pets" / folder / name).write_bytes(encoded(1, "PNG"))
    place = ["--cache", str(tmp_path / "cache")] if command[0] == "prepare" else [str(tmp_path / "shards")]
    main(["data", command[0], f"folders:{tmp_path / 'pets'}", *command[1:], *place])
    told = capsys.readouterr().err
    assert f"note: folders:{tmp_path / 'pets'}: 1 class is written in several ways, taken as one: 'Cat'" in told


def test_samples_left_out_are_counted_once(tmp_path, capsys) -> None:
    write_tar(tmp_path / "all.tar", [*shard_members([0]), ("a.jpg", b""), ("../b.jpg", b""), ("../b.jpg", b"")])
    main(["data", "prepare", f"shards:{tmp_path}", "--cache", str(tmp_path / "cache"), "--on-bad", "skip"])
    assert capsys.readouterr().err.startswith(f"2 left out: shards:{tmp_path}: 2 problems found\n")


@pytest.mark.parametrize("word", ["val", "dev", "valid", "validation"])
def test_usual_words_for_a_split_of_scenes(word) -> None:
    assert open_source(SCENES, split=word).split == "validation"


@pytest.mark.parametrize("command", [["data", "inspect"], ["data", "prepare"], ["train", "--data"]])
def test_a_location_without_its_kind_is_looked_at(command, tmp_path, monkeypatch, capsys) -> None:
    roboflow_yolo(tmp_path / "fruit")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([*command, "fruit"])
    assert ended.value.code == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told == "contextcaps: fruit: expected KIND:LOCATION; a data.yaml lies there: yolo:fruit"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fruit"]

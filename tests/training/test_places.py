"""Runs know where their data are, say so when these have moved, and know the images that they learned from."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_run import quick_runs, small_config

from contextcaps.cli import main
from contextcaps.data import DataError, open_source
from contextcaps.data.source_registry import absolute_source, missing_place
from contextcaps.training.evaluate import evaluate
from contextcaps.training.runs import Run
from contextcaps.training.trainer import resume, train

pytestmark = pytest.mark.long


def _photographs(folder: Path, count: int, seed: int) -> Path:
    """A folder of drawn scenes as PNG, and a table of their labels."""
    folder.mkdir(parents=True)
    source, rows = open_source(f"scenes?count={count}&size=32&seed={seed}"), []
    for index, sample in enumerate(source):
        Image.fromarray(np.asarray(sample.image)).save(folder / f"{seed}-{index}.png")
        rows.append(f"{seed}-{index}.png,{';'.join(source.classes[label] for label in sample.labels)}")
    (folder / "names.txt").write_text("\n".join(source.classes) + "\n")
    (folder / "labels.csv").write_text("\n".join(["image,labels", *rows]) + "\n")
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with photographs, and a run that was trained on them from there, named by a relative place."""
    home = tmp_path_factory.mktemp("home")
    _photographs(home / "photos", 60, 3)
    with pytest.MonkeyPatch.context() as patch, quick_runs():
        patch.chdir(home)
        data = "table:photos/labels.csv?classes=photos/names.txt"
        train(small_config(home / "run", home / "cache", data=data, epochs=1), progress=False)
    return home


@pytest.fixture
def elsewhere(home, tmp_path, monkeypatch) -> Path:
    """A copy of all of it where it may be changed; the working directory is another."""
    shutil.copytree(home, tmp_path / "home")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    for name in ("run/config.yaml", "run/run.json", "run/model/trained.json"):
        path = tmp_path / "home" / name
        path.write_text(path.read_text("utf-8").replace(str(home), str(tmp_path / "home")), "utf-8")
    return tmp_path / "home"


def test_places_are_kept_absolute(home) -> None:
    expected = f"table:{home}/photos/labels.csv?classes={home}/photos/names.txt"
    assert Run.open(home / "run").config.data == expected
    assert json.loads((home / "run" / "run.json").read_text())["data"] == expected
    assert json.loads((home / "run" / "model" / "trained.json").read_text())["data"] == expected


def test_absolute_places(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a+b").mkdir()
    assert absolute_source("scenes?count=3") == "scenes?count=3"
    assert absolute_source("hf:owner/name?split=train") == "hf:owner/name?split=train"
    assert absolute_source("hf:a+b") == f"hf:{tmp_path}/a+b"
    assert absolute_source("shards:x/train-*.tar") == f"shards:{tmp_path}/x/train-*.tar"
    assert absolute_source("coco:~/c?split=a+b&images=a%2Bb") == f"coco:{tmp_path}/c?split=a+b&images={tmp_path}/a%2Bb"
    assert absolute_source(absolute_source("voc:x?year=2007")) == absolute_source("voc:x?year=2007")
    assert missing_place("coco:nowhere") == "nowhere"
    assert missing_place("shards:x/train-*.tar") is missing_place("hf:owner/name") is missing_place("scenes") is None


def test_evaluate_from_another_folder(elsewhere) -> None:
    assert evaluate(elsewhere / "run", resamples=2, progress=False).folder == elsewhere / "run" / "evaluation" / "test"


def test_data_that_moved(elsewhere, capsys) -> None:
    (elsewhere / "photos").rename(elsewhere / "pictures")
    run, moved = elsewhere / "run", f"table:{elsewhere}/pictures/labels.csv?classes={elsewhere}/pictures/names.txt"
    for act, how in (
        (lambda: evaluate(run, progress=False), f"contextcaps evaluate {run} --data table:PLACE"),
        (lambda: resume(run, progress=False), f"contextcaps train --resume {run} --data table:PLACE"),
    ):
        with pytest.raises(DataError, match=r"photos/labels\.csv: not there, where the training data were") as refusal:
            act()
        assert how in str(refusal.value)
    measured = evaluate(run, moved, resamples=2, progress=False)
    assert measured.evaluation.images == 6  # the run's test part, not all sixty
    assert measured.evaluation.seen == {"train": 0, "val": 0, "of": 6}
    main(["train", "--resume", str(run), "--data", moved, "--quiet"])
    assert "moved, copied or touched" in capsys.readouterr().err
    assert Run.open(run).config.data == moved
    assert evaluate(run, resamples=2, progress=False).evaluation.images == 6


def test_other_data_in_the_place_of_those_that_moved(elsewhere) -> None:
    shutil.rmtree(elsewhere / "photos")
    other = _photographs(elsewhere / "others", 20, 8)
    data = f"table:{other}/labels.csv?classes={other}/names.txt"
    assert evaluate(elsewhere / "run", data, resamples=2, progress=False).evaluation.images == 20
    with pytest.raises(ValueError, match=r"the data of .* have changed since this run began"):
        resume(elsewhere / "run", data=data, progress=False)
    assert "photos" in Run.open(elsewhere / "run").config.data


@pytest.mark.parametrize("prepare", [True, False])
def test_images_that_were_trained_on_are_counted(prepare, elsewhere, tmp_path, capsys) -> None:
    mixed = _photographs(tmp_path / "mixed", 10, 8)  # ten new ones, and all sixty under other names
    rows = (elsewhere / "photos" / "labels.csv").read_text().splitlines()[1:]
    for row in rows:
        name = row.partition(",")[0]
        shutil.copy(elsewhere / "photos" / name, mixed / f"copy-{name}")
    with (mixed / "labels.csv").open("a") as file:
        file.writelines(f"copy-{row}\n" for row in rows)
    data = f"table:{mixed}/labels.csv?classes={mixed}/names.txt"
    measured = evaluate(elsewhere / "run", data, out=tmp_path / "report", resamples=2, prepare=prepare, progress=False)
    assert measured.evaluation.seen == {"train": 48, "val": 6, "of": 70}
    err = capsys.readouterr().err
    assert f"warning: {elsewhere / 'run'}: 48 of 70 images were in the training part" in err
    document = json.loads((tmp_path / "report" / "evaluation.json").read_text("utf-8"))
    assert document["seen"] == {"train": 48, "val": 6, "of": 70}
    page = (tmp_path / "report" / "evaluation.md").read_text("utf-8")
    assert "48 of 70 images" in page

    assert evaluate(elsewhere / "run", resamples=2, progress=False).evaluation.seen["train"] == 0  # its test part
    assert "warning" not in capsys.readouterr().err
    trained_on = evaluate(elsewhere / "run" / "model", split="train", out=tmp_path / "own", resamples=2, progress=False)
    assert trained_on.evaluation.seen == {"train": 48, "val": 0, "of": 48}

    (elsewhere / "run" / "seen.npz").unlink()  # a run of before
    assert evaluate(elsewhere / "run", data, out=tmp_path / "new", resamples=2, progress=False).evaluation.seen is None


@pytest.mark.parametrize(
    ("split", "seen"), [("train", (48, 0, 48)), ("val", (0, 6, 6)), ("test", (0, 0, 6)), ("all", (48, 6, 60))]
)
def test_a_model_without_its_run_knows_its_own_parts(split, seen, elsewhere, tmp_path, capsys) -> None:
    model = shutil.copytree(elsewhere / "run" / "model", tmp_path / "model")
    evaluation = evaluate(model, split=split, out=tmp_path / "report", resamples=2, progress=False).evaluation
    assert evaluation.seen == dict(zip(("train", "val", "of"), seen, strict=True))
    assert ("were in the training part" in capsys.readouterr().err) == (seen[0] > 0)


def test_without_a_prepared_copy_they_are_known_too(home, tmp_path) -> None:
    data = Run.open(home / "run").config.data
    with quick_runs():
        run = train(
            small_config(tmp_path / "run", tmp_path / "cache", data=data, prepare=False, epochs=1), progress=False
        )
    with np.load(home / "run" / "seen.npz") as one, np.load(run.folder / "seen.npz") as other:
        assert {name: one[name].tolist() for name in one} == {name: other[name].tolist() for name in other}

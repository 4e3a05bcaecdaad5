"""A few dozen photos, as somebody has who begins: the batch size follows them, and all goes on to the tags."""

import json
from pathlib import Path

import pytest
from PIL import Image
from small_run import quick_runs, small_config, small_words
from test_processes import run_command

from contextcaps import cli
from contextcaps.data import DataError, open_source
from contextcaps.training.config import TrainConfig
from contextcaps.training.data import fit_batch_size
from contextcaps.training.loop import Progress
from contextcaps.training.runs import Run
from contextcaps.training.trainer import resume, train

pytestmark = pytest.mark.long

PHOTOS = 39


def write_photos(folder: Path, count: int) -> str:
    """So many JPEG files with a table of their labels, the last class in a single image; the table's source."""
    scenes = open_source(f"scenes?count={count}&size=64&split=train")
    names = ("cloud", "tree", "sun", "rare")
    wanted = [scenes.classes.index(name) if name in scenes.classes else index for index, name in enumerate(names)]
    folder.mkdir(exist_ok=True)
    lines = ["image," + ",".join(names)]
    for number, scene in enumerate(scenes):
        Image.fromarray(scene.image).save(folder / f"{number}.jpg", quality=90)
        present = [int(label in scene.labels) for label in wanted[:3]] + [int(number == 0)]
        lines.append(f"{number}.jpg,{','.join(map(str, present))}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return f"table:{folder / 'labels.csv'}?unlabelled=keep"


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder, PHOTOS)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


def table(folder: Path) -> str:
    return f"table:{folder / 'labels.csv'}?unlabelled=keep"


def test_39_photos_from_start_to_tag(photos, cache, tmp_path, capsys) -> None:
    run = tmp_path / "run"
    words = small_words(run, cache, data=table(photos), batch_size=64, epochs=2, checkpoint_steps=0)
    cli.main(words)
    shown = capsys.readouterr()
    notes = [line for line in shown.err.splitlines() if line.startswith("note: batch size")]
    assert notes == ["note: batch size 7 instead of 64: there are 31 training images"]
    assert TrainConfig.from_yaml(run / "config.yaml").batch_size == 7
    facts = Run.open(run).facts
    assert facts["images"] == {"train": 31, "val": 4}
    rows = (run / "metrics.csv").read_text().splitlines()
    assert rows[-1].split(",")[rows[0].split(",").index("step")] == "8"  # four steps an epoch

    cli.main(["evaluate", str(run), "--cache", str(cache), "--resamples", "10", "--quiet"])
    assert "without a positive" in capsys.readouterr().out
    cli.main(["tag", str(photos / "3.jpg"), str(photos / "4.jpg"), "--model", str(run), "--threshold", "0"])
    tagged = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(row["tags"]) for row in tagged] == [4, 4]


def test_classes_that_the_validation_part_lacks_are_said(photos, cache, tmp_path, capsys) -> None:
    words = small_words(tmp_path / "run", cache, data=table(photos), epochs=1, checkpoint_steps=0)
    with quick_runs():
        cli.main(words)
    assert "note: 1 of 4 classes have no positive in the validation part: rare\n" in capsys.readouterr().err


def test_a_validation_part_without_a_label_is_one_line(photos, cache, tmp_path) -> None:
    lines = (photos / "labels.csv").read_text().splitlines()
    rows = [f"{line},train" for line in lines[1:30]] + [f"{line.split(',')[0]},0,?,0,0,val" for line in lines[30:]]
    (photos / "split.csv").write_text("\n".join([f"{lines[0]},split", *rows]) + "\n")
    with pytest.raises(DataError, match=r"split.csv.*: none of its images \(10\) shows any class; label more, or name"):
        train(small_config(tmp_path / "run", cache, data=f"table:{photos / 'split.csv'}?unlabelled=keep"))
    assert not (tmp_path / "run").exists()


def test_a_run_of_few_photos_is_resumed_with_its_batch_size(photos, cache, tmp_path, capsys) -> None:
    with quick_runs():
        train(small_config(tmp_path / "run", cache, data=table(photos), batch_size=64, epochs=1), progress=False)
        assert "note: batch size 7" in capsys.readouterr().err
        result = resume(tmp_path / "run", progress=False)
    assert "batch size" not in capsys.readouterr().err
    assert [record["step"] for record in result.history] == [4]


def test_photos_that_cannot_be_read_count(tmp_path, cache, capsys) -> None:
    """31 training photos fill a batch of 31, but not when some of them cannot be read."""
    data = write_photos(tmp_path / "photos", PHOTOS)
    for number in range(2, 39, 4):
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(b"no photo")
    settings = {"data": data, "on_bad": "skip", "batch_size": 31, "epochs": 1, "checkpoint_steps": 0}
    with quick_runs():
        train(small_config(tmp_path / "run", cache, **settings), progress=False)
        images = Run.open(tmp_path / "run").facts["images"]["train"]
        assert images < 31
        assert f"note: batch size {images // 4} instead of 31: there are {images} training" in capsys.readouterr().err
        assert Run.open(tmp_path / "run").config.batch_size == images // 4
        resume(tmp_path / "run", progress=False)  # its loader is the one that it began with


def test_two_processes_share_them(photos, cache, tmp_path) -> None:
    words = small_words(tmp_path / "run", cache, data=table(photos), batch_size=64, epochs=1, devices=2)
    run_command(*words, "--quiet")
    assert Run.open(tmp_path / "run").config.batch_size == 3  # 31 images: four steps of 2 x 3
    assert Run.open(tmp_path / "run").facts["processes"] == 2


@pytest.mark.parametrize(
    ("images", "devices", "asked", "expected"),
    [(31, 1, 64, 7), (31, 1, 31, 31), (64, 1, 64, 64), (63, 1, 64, 15), (31, 4, 8, 1), (10, 1, 64, 2), (10, 10, 2, 1)],
)
def test_batch_sizes(images, devices, asked, expected) -> None:
    config = TrainConfig(batch_size=asked, devices=devices)
    fitted = fit_batch_size(config, images)
    assert fitted.batch_size == expected
    assert (fitted is config) == (asked == expected)


def test_hardly_any_photos_are_one_line(tmp_path, cache) -> None:
    data = write_photos(tmp_path / "photos", 9)
    with pytest.raises(DataError, match=r"labels.csv.*: expected at least 10 training images, got 7; label more$"):
        train(small_config(tmp_path / "run", cache, data=data, batch_size=64), progress=False)
    assert not (tmp_path / "run").exists()
    with pytest.raises(DataError, match="expected at least 12 training images for 12 processes, got 11; label more"):
        fit_batch_size(TrainConfig(data=data, devices=12), 11)
    assert fit_batch_size(TrainConfig(batch_size=2), 7).batch_size == 2  # who asks for it has thought of it


def test_of_epochs_with_the_same_map_the_one_with_the_lowest_loss_is_best() -> None:
    """Of six validation images many epochs have the same order of scores; the first has learned least."""
    measured = [(0.9, 3.8), (0.95, 3.5), (0.95, 2.8), (0.95, 3.0), (0.8, 2.0)]
    history = [{"epoch": e, "val_mAP": m, "val_loss": loss} for e, (m, loss) in enumerate(measured, 1)]
    best = Progress(history=history).best
    assert best is not None
    assert best["epoch"] == 3

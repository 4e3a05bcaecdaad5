"""The benchmark of tagging: its images, its command, what it measures and what it writes."""

import csv
import inspect
import math

import numpy as np
import pytest
from PIL import Image

import contextcaps
from contextcaps.cli import main
from contextcaps.experiments.bench import tagging
from contextcaps.experiments.bench.installed import installed_bytes
from contextcaps.experiments.bench.photographs import DRAWN, Drawn, draw_photographs
from contextcaps.models.trained import Trained
from contextcaps.tagging import Tagger

CLASSES = ("sky", "sea", "tree")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model")
    network = contextcaps.create_model("capsnet", 3, 32, "small", capsules={"types": 2}, class_names=CLASSES)
    network.save_pretrained(folder)
    Trained((0.5,) * 3, (0.1,) * 3, seed=0, data="scenes", epoch=1).write(folder, network.config)
    return str(folder)


@pytest.fixture
def here(monkeypatch) -> None:
    """Measure in this process, little."""
    monkeypatch.setattr(tagging, "in_own_process", lambda work, *arguments: work(*arguments))
    monkeypatch.setattr(tagging, "DRAWN", (Drawn(64, 48, 2), Drawn(100, 75, 1)))
    monkeypatch.setattr(tagging, "peak_of_tagging", lambda *words: 2.0**21)
    for name, value in (("_MANY", 5), ("_STARTS", 1), ("_REPETITIONS", 2), ("_LATENCIES", 3)):
        monkeypatch.setattr(tagging, name, value)


def test_drawn_photographs_have_their_size_and_are_the_same_each_time(tmp_path) -> None:
    files = draw_photographs(tmp_path / "a", Drawn(80, 60, 2))
    again = draw_photographs(tmp_path / "b", Drawn(80, 60, 2))
    assert [file.read_bytes() for file in files] == [file.read_bytes() for file in again]
    with Image.open(files[0]) as first, Image.open(files[1]) as second:
        assert (first.format, first.size) == ("JPEG", (80, 60))
        assert not np.array_equal(np.asarray(first), np.asarray(second))
    other = draw_photographs(tmp_path / "c", Drawn(80, 60, 1), seed=1)
    assert other[0].read_bytes() != files[0].read_bytes()
    assert [drawn[:2] for drawn in DRAWN] == [(640, 480), (4000, 3000)]


def test_batches_are_those_of_tagging() -> None:
    assert inspect.signature(Tagger.tag_stream).parameters["batch_size"].default == tagging._BATCH


@pytest.mark.usefixtures("here")
def test_the_command_writes_its_table(model, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(tagging, "cold_start", lambda *words: 1.5)
    flags = ["--model", model, "--device", "cpu", "--seconds", "0", "--no-compile", "--quiet", "--out", str(tmp_path)]
    main(["bench", "--tagging", *flags])
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "drawn, 64×48" in printed.out
    assert "1.5 [1.5 to 1.5]" in printed.out
    assert f"Written to {tmp_path}: tagging.csv, tagging.md" in printed.out.replace("\n", " ")
    with open(tmp_path / "tagging.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["images"] for row in rows] == ["drawn, 64×48", "drawn, 100×75"]
    for row in rows:
        assert row["cold_starts"] == "1.5"
        assert len(row["latencies"].split()) >= 3
        assert len(row["many"].split()) == 2
        figures = [*row["latencies"].split(), *row["many"].split()]
        figures += [row[name] for name in ("processor", "decoding", "network", "peak", "installed")]
        assert all(float(figure) > 0 for figure in figures)
    page = (tmp_path / "tagging.md").read_text(encoding="utf-8")
    assert "capsnet on small, 32×32 px, 3 classes" in page
    assert "| drawn, 100×75 | PyTorch " in page


@pytest.mark.usefixtures("here")
def test_images_of_ones_own(model, tmp_path, monkeypatch) -> None:
    started = []
    monkeypatch.setattr(tagging, "cold_start", lambda *words: started.append(words) or 1.0)
    files = draw_photographs(tmp_path / "photos", Drawn(64, 48, 3))
    bench = tagging.run_tagging_bench(model, tmp_path / "photos", "cpu", 0, tmp_path / "out", False, False)
    (row,) = bench.rows
    assert row.images == str(tmp_path / "photos")
    assert started == [(model, files[0], "cpu", "torch")]  # a model without a graph
    assert row.way == "torch"
    assert math.isnan(row.peak) or row.peak > 2**20


@pytest.mark.long
def test_memory_of_a_new_process_and_packages_are_counted(model, tmp_path) -> None:
    files = draw_photographs(tmp_path, Drawn(64, 48, 2))
    peak = tagging.peak_of_tagging(model, files, "cpu", "torch")
    assert math.isnan(peak) or peak > 50e6
    assert 20e6 < installed_bytes("contextcaps") < installed_bytes("contextcaps", "torch")


@pytest.mark.long
def test_8_bits_are_a_tagger(model, tmp_path) -> None:
    pytest.importorskip("onnxscript")
    files = draw_photographs(tmp_path, Drawn(64, 48, 3))
    tagger = contextcaps.load(model)
    small = contextcaps.load(tagging._in_8_bits(model, tagger, files, tmp_path / "int8.onnx"))
    for one, other in zip(tagger.tag(files), small.tag(files), strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=0.05)


@pytest.mark.long
def test_a_new_process_is_timed_or_says_why_not(model, tmp_path) -> None:
    (file,) = draw_photographs(tmp_path, Drawn(64, 48, 1))
    assert tagging.cold_start(model, file, "cpu", "torch") > 0
    with pytest.raises(ValueError, match=r"scene-000.jpg: it could not be tagged with nowhere: .*no such folder"):
        tagging.cold_start("nowhere", file, "cpu", "torch")


def test_what_cannot_be_measured_is_refused(model, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    for images, message in (
        (tmp_path / "empty", "no images in this folder; leave --images out"),
        (tmp_path / "missing", "expected a folder with images, got nothing there"),
    ):
        with pytest.raises(ValueError, match=message):
            tagging.run_tagging_bench(model, images, "cpu", 0, tmp_path / "out", progress=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "coco80"], "--model: is for tagging; add --tagging"),
        (["--no-compile"], "--no-compile: is for tagging; add --tagging"),
        (["--images", "photos"], "--images: is for tagging; add --tagging"),
        (["--tagging", "--sizes", "paper"], "--sizes: is for the head, which --tagging does not measure"),
        (["--tagging", "--crf-rank", "3"], "--crf-rank: is for the head"),
        (["--tagging", "--model", "nowhere"], "nowhere"),
        (["--tagging", "--out", __file__], "expected a folder, got a file"),
    ],
)
def test_wrong_flags_give_one_line(words, message, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", *words])
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert message in printed.err
    assert printed.err.count("\n") == 1

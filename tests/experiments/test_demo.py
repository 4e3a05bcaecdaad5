"""The demo in small: everything is written, what is finished is used again, what was killed goes on."""

import csv
import dataclasses
import io
import json
import shlex
import signal
from pathlib import Path

import numpy as np
import pytest
import tyro
from PIL import Image
from rich.console import Console

import contextcaps
from contextcaps.data import open_source
from contextcaps.experiments import Demo, DemoSettings, demo, run_demo, show_demo
from contextcaps.experiments.demo_settings import MODELS, train_words
from contextcaps.training.config import TrainConfig
from contextcaps.training.loop import StoppedRun, TrainingLoop
from contextcaps.training.runs import Run, RunError

SMALL = DemoSettings(
    images=48, validation_images=24, test_images=30, epochs=2, batch_size=16, types=2, tagged_size=64, resamples=20
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache) -> Demo:
    """A demo that nobody stopped."""
    return run_demo(tmp_path_factory.mktemp("whole") / "demo", SMALL, cache=cache, progress=False)


class Killed(BaseException):
    """Stands for a SIGKILL in this process: nothing catches it."""


def figures(result: Demo) -> dict:
    """What must be the same again: everything but time and place."""
    document = json.loads((result.folder / "comparison.json").read_text(encoding="utf-8"))
    for run in document["runs"]:
        for name in ("folder", "seconds", "images_per_second"):
            del run[name]
    del document["commands"], document["facts"]
    return document


def test_everything_is_written(whole) -> None:
    assert sorted(path.name for path in whole.folder.iterdir()) == [
        *("capsnet", "comparison.json", "comparison.md", "contextcaps", "convergence.png", "images", "tagged.png")
    ]
    assert all(path.exists() for path in whole.files.values())
    for name in ("convergence.png", "tagged.png"):
        with Image.open(whole.folder / name) as picture:
            assert min(picture.size) >= 300
            assert any("0" in picture.text[key] for key in ("Seed", "Description") if key in picture.text)
    for model in MODELS:
        assert Run.open(whole.folder / model).facts["state"] == "finished"
        assert (whole.folder / model / "evaluation" / "evaluation.md").is_file()
    page = (whole.folder / "comparison.md").read_text(encoding="utf-8")
    assert all(command in page for command in whole.commands)
    assert all(f"- {finding}" in page for finding in whole.comparison.findings())


def test_both_networks_get_the_same(whole) -> None:
    one, other = (Run.open(whole.folder / model).config for model in MODELS)
    assert dataclasses.replace(one, model=other.model, out=other.out, loss=other.loss) == other
    assert (one.loss, other.loss) == ("margin", "bce")  # on lengths, and on a field's sigmoids


def test_the_table_is_that_of_the_evaluations(whole) -> None:
    for run in whole.comparison.runs:
        report = json.loads((whole.folder / run.name / "evaluation" / "evaluation.json").read_text(encoding="utf-8"))
        assert report["images"] == SMALL.test_images
        assert report["facts"]["part"] == "test"
        assert report["metrics"]["mAP"]["model"]["value"] == run.evaluation.metrics["mAP"].model.value
        with open(whole.folder / run.name / "metrics.csv", encoding="utf-8") as file:
            assert [float(row["val_mAP"]) for row in csv.DictReader(file)] == [each["val_mAP"] for each in run.history]


def test_the_tagged_images_are_chosen_by_seed_and_judged_by_the_truth(whole) -> None:
    source = open_source("scenes", split="test", count=SMALL.test_images, size=SMALL.tagged_size)
    chosen = sorted(np.random.default_rng(0).choice(30, 6, replace=False).tolist())
    assert [image.name for image in whole.tagged] == [source[index].id for index in chosen]
    tagger = contextcaps.load(whole.folder / "contextcaps", "cpu")
    paths = [whole.folder / "images" / f"{image.name}.png" for image in whole.tagged]
    for index, image, tagging in zip(chosen, whole.tagged, tagger.tag(paths), strict=True):
        truth = {source.classes[label] for label in source.labels_of(index)}
        said = {tag.name for tag in tagging.tags}
        assert set(image.truth) == truth
        assert {tag.name for tag in image.tags if tag.verdict == "right"} == truth & said
        assert {tag.name for tag in image.tags if tag.verdict == "wrong"} == said - truth
        assert {tag.name for tag in image.tags if tag.verdict == "missed"} == truth - said
        assert np.array_equal(image.pixels, source[index].image)


def test_a_second_call_trains_nothing(whole, cache, monkeypatch) -> None:
    before = figures(whole)
    for name in ("train", "resume"):
        monkeypatch.setattr(demo, name, lambda *rest, **named: pytest.fail("trained again"))
    assert figures(run_demo(whole.folder, SMALL, cache=cache, progress=False)) == before


@pytest.mark.parametrize("step", [1, 4, 8])
def test_a_killed_one_goes_on(tmp_path, cache, whole, monkeypatch, step) -> None:
    """In the first run before any checkpoint, in its second epoch, and in the second run."""
    attend, steps = TrainingLoop._attend, 0

    def attend_and_die(loop) -> None:
        nonlocal steps
        attend(loop)
        steps += 1
        if steps == step:
            raise Killed

    monkeypatch.setattr(TrainingLoop, "_attend", attend_and_die)
    with pytest.raises(Killed):
        run_demo(tmp_path / "demo", SMALL, cache=cache, progress=False)
    monkeypatch.undo()
    assert figures(run_demo(tmp_path / "demo", SMALL, cache=cache, progress=False)) == figures(whole)


def test_ctrl_c_says_how_to_go_on(tmp_path, cache, whole, monkeypatch) -> None:
    attend = TrainingLoop._attend

    def attend_and_ask(loop) -> None:
        if loop.progress.step == 2:
            signal.raise_signal(signal.SIGINT)
        attend(loop)

    monkeypatch.setattr(TrainingLoop, "_attend", attend_and_ask)
    folder = tmp_path / "a demo"
    with pytest.raises(StoppedRun, match=r"stopped after step 2 .*go on with: contextcaps demo --out '.*/a demo'"):
        run_demo(folder, SMALL, cache=cache, progress=False)
    monkeypatch.undo()
    assert figures(run_demo(folder, SMALL, cache=cache, progress=False)) == figures(whole)


def test_folders_that_hold_something_else(tmp_path, whole, cache) -> None:
    other = dataclasses.replace(SMALL, epochs=3)
    with pytest.raises(RunError, match=r"capsnet: holds a run with other settings \(epochs: 2, not 3\)"):
        run_demo(whole.folder, other, cache=cache, progress=False)
    with pytest.raises(RunError, match="holds a run; choose another"):
        run_demo(whole.folder / "capsnet", SMALL, cache=cache, progress=False)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunError, match="got a file"):
        run_demo(tmp_path / "file", SMALL, cache=cache, progress=False)


def test_the_commands_do_the_same(whole) -> None:
    trained = [shlex.split(command)[2:] for command in whole.commands if command.startswith("contextcaps train")]
    assert len(trained) == len(MODELS)
    for model, words in zip(MODELS, trained, strict=True):
        config = tyro.cli(TrainConfig, args=words)
        run = Run.open(whole.folder / model).config
        assert dataclasses.replace(config, out=run.out, cache=run.cache) == run
    assert not any(command.startswith("contextcaps demo") for command in whole.commands)  # it has no such flags


def test_words_of_a_configuration() -> None:
    config = TrainConfig(
        augmentation=False,
        deterministic=True,
        options={"capsules.types": 8, "routing": None, "em": "default"},
        model="capsnet",
    )
    assert tyro.cli(TrainConfig, args=train_words(config)) == config


@pytest.mark.parametrize("width", [60, 100])
def test_what_is_shown_fits_100_columns(whole, width) -> None:
    """And nothing is cut off where there are fewer."""
    stream = io.StringIO()
    show_demo(whole, Console(file=stream, width=width))
    text = stream.getvalue()
    shown, _, commands = text.partition("What to try next")
    folder = str(whole.folder)
    assert all(len(line) <= 100 for line in shown.splitlines() if folder not in line)
    assert "…" not in shown
    assert all(heading in shown for heading in ("95 % interval", "weights", "images/s"))
    for path in whole.files.values():
        assert path.name in text
    for command, _ in whole.next_steps():
        assert command in commands

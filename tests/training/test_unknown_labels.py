"""Trainings on labels that are not all known, from the table to the report."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score
from small_run import finals, quick_runs, small_config

from contextcaps import cli
from contextcaps.data import open_source
from contextcaps.data.unknown import UNKNOWN
from contextcaps.training.data import open_parts
from contextcaps.training.evaluate import evaluate
from contextcaps.training.runs import Run
from contextcaps.training.trainer import train

pytestmark = pytest.mark.long

CLASSES = ("red", "green", "blue", "never")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> str:
    """90 pictures, each channel bright where its class is present; of the labels, a third is unknown."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    present = generator.random((90, 3)) < 0.4
    unknown = generator.random((90, 3)) < 0.35
    unknown[unknown.all(axis=1)] = False
    words = np.where(unknown, generator.choice(["?", "", "nan", "-1"], (90, 3)), present.astype(int).astype(str))
    lines = [",".join(("image", *CLASSES))]
    for number in range(90):
        pixels = np.where(present[number], 220, 40) + generator.integers(-30, 30, (32, 32, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
        never = "?" if number % 3 else "0"
        lines.append(f"{number}.png,{','.join(words[number])},{never}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return f"table:{folder / 'table.csv'}?unlabelled=keep"


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def run(tmp_path_factory, table, cache) -> Path:
    """A run with everything that looks at labels: potentials, class weights, given labels."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    settings = {"data": table, "known": 0.4, "class_weights": "sqrt", "epochs": 8, "lr": 3e-3, "checkpoint_steps": 0}
    with quick_runs():
        train(small_config(folder, cache, **settings), progress=False)
    return folder


def test_a_table_with_question_marks_trains(run) -> None:
    best = max(float(line.split(",")[4]) for line in (run / "metrics.csv").read_text().splitlines()[1:])
    assert 0 <= best <= 1
    parts = open_parts(Run.open(run).config)
    targets = parts["train"].source.targets()
    assert (targets == UNKNOWN).any()
    trained = json.loads((run / "model" / "trained.json").read_text())
    expected = [float((column == 1).sum() / (column != UNKNOWN).sum()) for column in targets.T]
    assert list(trained["frequencies"].values()) == pytest.approx(expected)
    assert trained["frequencies"]["never"] == 0


def test_only_known_pairs_are_measured(run, cache, tmp_path) -> None:
    measured = evaluate(run, out=tmp_path, cache=cache, resamples=10, known=(0.5,), progress=False)
    scores, targets = measured.predictions.scores.numpy(), measured.predictions.targets.numpy()
    unknown = targets == UNKNOWN
    assert unknown[:, :3].any()
    each = []
    for column, figures in enumerate(measured.evaluation.classes):
        rows = ~unknown[:, column]
        assert figures.positives == (targets[rows, column] == 1).sum()
        if figures.positives:
            each.append(average_precision_score(targets[rows, column], scores[rows, column]))
            assert figures.average_precision == pytest.approx(each[-1])
    assert measured.evaluation.metrics["mAP"].model.value == pytest.approx(np.mean(each))
    assert np.mean(each) > 0.8  # the colours are easy
    brier = ((scores - targets)[~unknown] ** 2).mean()
    assert measured.evaluation.metrics["Brier"].model.value == pytest.approx(brier, rel=1e-5)
    assert measured.evaluation.unknown == unknown.sum() == json.loads(measured.files[0].read_text())["unknown"]
    page = (tmp_path / "evaluation.md").read_text()
    assert f"{unknown.sum()} of {unknown.size} pairs of image and class count nowhere" in " ".join(page.split())
    (share,) = measured.known.shares
    assert share.pairs <= (~unknown).sum() - 1
    assert np.isfinite(share.told.value)


def test_streamed_images_give_the_same(table, cache, tmp_path) -> None:
    settings = {"data": table, "epochs": 1, "checkpoint_steps": 0, "model": "gap", "options": {}}
    with quick_runs():
        train(small_config(tmp_path / "prepared", cache, **settings), progress=False)
        train(small_config(tmp_path / "streamed", cache, prepare=False, **settings), progress=False)
    assert finals(tmp_path / "streamed")["metrics"] == finals(tmp_path / "prepared")["metrics"]
    assert finals(tmp_path / "streamed")["model"] == finals(tmp_path / "prepared")["model"]


def test_what_is_unknown_does_not_matter(table, cache, tmp_path) -> None:
    """A training does not look at what stands behind an unknown label: other marks for it give the same weights."""
    text = Path(table.partition(":")[2].partition("?")[0]).read_text()
    other = Path(table.partition(":")[2].partition("?")[0]).with_name("other.csv")
    other.write_text(text.replace("nan", "?").replace("-1", ""))
    found = []
    for name, data in (("one", table), ("other", f"table:{other}?unlabelled=keep")):
        assert (open_source(data).targets() == open_source(table).targets()).all()
        with quick_runs():
            train(small_config(tmp_path / name, cache, data=data, epochs=1, checkpoint_steps=0), progress=False)
        found.append((tmp_path / name / "model" / "model.safetensors").read_bytes())
    assert found[0] == found[1]


def test_inspect_counts_them(table, capsys) -> None:
    cli.main(["data", "inspect", table])
    shown = " ".join(capsys.readouterr().out.split())
    targets = open_source(table).targets()
    assert f"unknown labels {(targets == UNKNOWN).sum()} of 360" in shown
    assert "most in never (60)" in shown


def test_a_class_that_is_never_known_keeps_its_weights(table, cache, tmp_path) -> None:
    """Whatever the epochs: only weight decay would move them, and it is off."""
    path = Path(table.partition(":")[2].partition("?")[0])
    rows = [line.rsplit(",", 1)[0] + ",?" for line in path.read_text().splitlines()[1:]]
    (path.with_name("hidden.csv")).write_text("\n".join([",".join(("image", *CLASSES)), *rows]) + "\n")
    path.with_name("classes.txt").write_text("\n".join(CLASSES))  # a column without 0 and 1 is a class if it is listed
    data = f"table:{path.with_name('hidden.csv')}?unlabelled=keep&classes={path.with_name('classes.txt')}"
    settings = {"data": data, "model": "gap", "options": {}, "epochs": 1, "weight_decay": 0.0, "ema": 0.0}
    with quick_runs():
        result = train(small_config(tmp_path / "run", cache, **settings), progress=False)
    state = torch.load(result.folder / "checkpoints" / "last.ckpt", weights_only=True)["optimizer"]["state"]
    moments = [each["exp_avg_sq"] for each in state.values() if each["exp_avg_sq"].shape[0] == len(CLASSES)]
    assert len(moments) == 2  # weight and bias of the last layer
    for moment in moments:
        assert (moment[3] == 0).all()
        assert (moment[:3] > 0).any()

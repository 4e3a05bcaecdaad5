"""The evaluation report: figures of the model and of the prior, files, tables, plots."""

import io
import json
import math
import os

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from contextcaps.documents import interval, percent
from contextcaps.evaluation.metrics import average_precision, count_decisions, prior_scores, tune_thresholds
from contextcaps.evaluation.predictions import Predictions
from contextcaps.evaluation.report import Evaluation, evaluate_predictions, evaluation_tables, write_report

FACTS = {"data": "scenes", "split": "test", "seed": 4711, "date": "2026-11-16", "hardware": "2 | cores"}
FILES = ["classes.png", "evaluation.json", "evaluation.md", "precision-recall.png", "reliability.png"]


def predictions(images: int = 80, classes: int = 6, seed: int = 0) -> Predictions:
    """Predictions with some skill; the last class has no positive."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.rand(images, classes, generator=generator) < torch.linspace(0.5, 0.1, classes)
    targets[:, -1] = False
    targets[0, :-1] = True
    scores = torch.sigmoid(torch.randn(images, classes, generator=generator) + 3 * targets - 2)
    names = tuple(f"class {index} | [b] $\\frac$" for index in range(classes))
    return Predictions(scores, targets.to(torch.uint8), torch.arange(images), names)


def evaluate(given: Predictions, tuned: bool = True) -> Evaluation:
    thresholds = tune_thresholds(given.scores, given.targets).each if tuned else None
    return evaluate_predictions(given, tuple(given.targets.float().mean(0).tolist()), thresholds, 3, resamples=30)


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    return evaluate(predictions())


def test_figures_of_the_model_and_beside_them_of_the_prior(evaluation) -> None:
    given = predictions()
    frequencies = given.targets.float().mean(0)
    prior = prior_scores(frequencies, len(given))
    for name, average in (("mAP", "macro"), ("micro_AP", "micro"), ("sample_AP", "samples")):
        metric = evaluation.metrics[name]
        assert metric.model.value == float(average_precision(given.scores, given.targets, average))
        assert metric.prior.value == float(average_precision(prior, given.targets, average))
    thresholds = tune_thresholds(given.scores, given.targets).each
    tuned = count_decisions(given.scores, given.targets, thresholds)
    assert evaluation.metrics["CF1@tuned"].model.value == float(tuned.summary()["CF1"])
    assert evaluation.metrics["CR@tuned"].prior.value == 1  # it says every class that it has seen
    assert evaluation.metrics["CR@0.5"].prior.value < 1
    for metric in evaluation.metrics.values():
        for each in (metric.model, metric.prior):
            assert each.low <= each.high
    assert (evaluation.images, evaluation.left_out, evaluation.resamples, evaluation.seed) == (80, 1, 30, 3)
    first = evaluation.classes[0]
    assert (first.name, first.positives) == ("class 0 | [b] $\\frac$", int(given.targets[:, 0].sum()))
    assert first.tuned_f1 == float(tuned.f1[0])
    assert first.threshold == float(thresholds[0])
    assert first.prior_average_precision == pytest.approx(float(frequencies[0]))
    assert math.isnan(evaluation.classes[-1].average_precision)
    assert sum(evaluation.reliability["model"].pairs) == 480


def test_tuned_thresholds_that_are_worse_than_one_half_are_told(tmp_path) -> None:
    given = predictions(images=300)
    frequencies = tuple(given.targets.float().mean(0).tolist())
    found = evaluate_predictions(given, frequencies, (0.002,) * 6, 3, resamples=30)
    assert found.tuned_worse == ("OF1",) or found.tuned_worse == ("CF1", "OF1")
    gain = found.metrics["OF1@tuned"].model.value - found.metrics["OF1@0.5"].model.value
    assert found.tuned_gains["OF1"].value == pytest.approx(gain)
    assert found.tuned_gains["OF1"].low <= found.tuned_gains["OF1"].high < 0
    figures = [percent(found.metrics[f"OF1@{name}"].model.value) for name in ("tuned", "0.5")]
    sentence = f"OF1 {figures[0]} instead of {figures[1]}"
    write_report(found, tmp_path, "A title", FACTS)
    document = json.loads((tmp_path / "evaluation.json").read_text())
    assert document["tuned_worse"] == list(found.tuned_worse)
    assert document["tuned_gains"]["OF1"]["value"] == pytest.approx(gain)
    console = Console(file=io.StringIO(), width=80)
    evaluation_tables(found)[0].print(console)
    for text in (console.file.getvalue(), (tmp_path / "evaluation.md").read_text()):
        assert "tuned thresholds are worse than 0.5 on these images" in " ".join(text.split())
        assert sentence in " ".join(text.split())


@pytest.mark.parametrize("thresholds", [None, (0.5,) * 6], ids=["untuned", "equal"])
def test_nothing_is_told_of_thresholds_that_are_not_worse(thresholds, tmp_path) -> None:
    found = evaluate_predictions(predictions(), (0.2,) * 6, thresholds, 3, resamples=30)
    assert found.to_dict()["tuned_worse"] == []
    assert set(found.tuned_gains) == (set() if thresholds is None else {"CF1", "OF1"})
    write_report(found, tmp_path, "A title", FACTS)
    assert "worse than 0.5" not in (tmp_path / "evaluation.md").read_text()


def test_the_same_seed_gives_the_same_evaluation(evaluation) -> None:
    assert json.dumps(evaluate(predictions()).to_dict()) == json.dumps(evaluation.to_dict())


def test_curves_are_thinned_and_keep_their_ends() -> None:
    given = predictions(images=900)
    curve = evaluate(given).curves["model"]
    assert 200 < len(curve.recall) <= 400
    assert list(curve.recall) == sorted(curve.recall)
    assert curve.recall[-1] == 1
    assert curve.precision[0] == 1


def test_what_does_not_fit_is_refused() -> None:
    given = predictions()
    with pytest.raises(ValueError, match="frequencies: expected one for each of 6 classes, got 2"):
        evaluate_predictions(given, (0.1, 0.2))
    nothing = Predictions(given.scores[:0], given.targets[:0], given.indices[:0], given.classes)
    with pytest.raises(ValueError, match="expected at least one image"):
        evaluate_predictions(nothing, (0.1,) * 6)


def test_the_files_say_the_same(evaluation, tmp_path) -> None:
    written = write_report(evaluation, tmp_path / "new" / "report", "A title", FACTS)
    assert sorted(path.name for path in written) == FILES == sorted(os.listdir(tmp_path / "new" / "report"))
    text = (tmp_path / "new/report/evaluation.json").read_text(encoding="utf-8")
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert document["facts"]["seed"] == 4711
    assert document["seed"] == 3
    assert document["classes"][-1]["average_precision"] is None
    assert document["classes_left_out"] == 1
    value = document["metrics"]["mAP"]["model"]["value"]
    assert value == evaluation.metrics["mAP"].model.value
    page = (tmp_path / "new/report/evaluation.md").read_text(encoding="utf-8")
    assert f"| mAP (macro) | {100 * value:.1f} | [" in " ".join(page.split())
    for text in ("# A title", "4711", "2 \\| cores", "30 resamples, seed", "1 of\n6 classes", "constant prior"):
        assert " ".join(text.split()) in " ".join(page.split())
    assert "says every class that it has seen" in " ".join(page.split())
    assert "in the training data, as far as the model says it, or else in these" in " ".join(page.split())
    order = [
        page.index(f"class {index} \\|") for index in np.argsort([-c.average_precision for c in evaluation.classes])
    ]
    assert order == sorted(order)  # by average precision, the undefined one last


def test_plots_carry_their_seeds(evaluation, tmp_path) -> None:
    write_report(evaluation, tmp_path, "A title", FACTS)
    for name in FILES:
        if name.endswith(".png"):
            with Image.open(tmp_path / name) as picture:
                assert picture.text["Title"] == "A title"
                assert "seed: 4711" in picture.text["Description"]
                assert "seed of the resampling: 3" in picture.text["Description"]
                assert min(picture.size) > 300
                assert np.asarray(picture.convert("L")).std() > 10  # something is drawn


@pytest.mark.long
@pytest.mark.parametrize("classes", [1, 2, 60, 61, 171])
def test_plots_and_tables_of_any_number_of_classes(classes, tmp_path) -> None:
    evaluation = evaluate(predictions(images=30, classes=classes), tuned=classes != 2)
    write_report(evaluation, tmp_path, "A title with $a_1$ in it " * 9, {**FACTS, "model": "$\\frac" * 40})
    with Image.open(tmp_path / "classes.png") as picture:
        assert max(picture.size) < 2000
    console = Console(width=80, file=io.StringIO())
    for table in evaluation_tables(evaluation):
        table.print(console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line[18:] for line in lines)  # only a class's name may be cut off
    value = evaluation.metrics["mAP"].model
    assert any(f"mAP (macro) {percent(value.value)} {interval(value)}" in " ".join(line.split()) for line in lines)
    if classes == 2:
        assert any("class 0 | [b]" in line for line in lines)


def test_a_file_is_whole_or_as_it_was(evaluation, tmp_path, monkeypatch) -> None:
    write_report(evaluation, tmp_path, "first", FACTS)
    before = {name: (tmp_path / name).read_bytes() for name in FILES}

    def fails(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="No space left"):
        write_report(evaluation, tmp_path, "second", FACTS)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before

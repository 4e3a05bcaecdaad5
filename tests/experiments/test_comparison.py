"""Runs side by side: the figures are those of the evaluations, the difference is that of a paired bootstrap."""

import dataclasses
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from compared_runs import CLASSES, measured_run
from rich.console import Console
from sklearn.metrics import average_precision_score

from contextcaps.evaluation.evaluate import Measured
from contextcaps.evaluation.metrics.bootstrap import draw_weights
from contextcaps.evaluation.report.evaluation import Estimate, Metric
from contextcaps.experiments import Comparison, compare
from contextcaps.experiments.comparison import read_history
from contextcaps.experiments.comparison_table import comparison_markdown, comparison_table
from contextcaps.training.runs import RunError


@pytest.fixture
def measured(tmp_path) -> dict[str, Measured]:
    return {
        "plain": measured_run(tmp_path / "plain", skill=0.2),
        "better": measured_run(tmp_path / "better", skill=0.6),
    }


def compared(measured: dict[str, Measured], **settings) -> Comparison:
    return compare(measured, {name: each.folder.parent for name, each in measured.items()}, **settings)


def test_what_is_known_of_a_run(measured) -> None:
    comparison = compared(measured)
    assert [run.name for run in comparison.runs] == ["plain", "better"]
    for run in comparison.runs:
        assert run.evaluation is measured[run.name].evaluation
        assert (run.parameters, run.seed, run.best_epoch, len(run.history)) == (1_234_567, 3, 2, 3)
        assert run.seconds == pytest.approx(133)
        assert run.images_per_second == pytest.approx(300 / 133)


def test_the_difference_is_that_of_a_paired_bootstrap(measured) -> None:
    """Against scikit-learn on every resample."""
    weights = draw_weights(60, 40, seed=7).numpy()  # [n, R]

    def precision(name: str, resample: int | None) -> float:
        predictions = measured[name].predictions
        weight = None if resample is None else weights[:, resample]
        return float(
            np.mean(
                [
                    average_precision_score(
                        predictions.targets[:, j].numpy(), predictions.scores[:, j].numpy(), sample_weight=weight
                    )
                    for j in range(len(CLASSES))
                ]
            )
        )

    drawn = [precision("better", resample) - precision("plain", resample) for resample in range(40)]
    (difference,) = compared(measured).differences
    assert (difference.run, difference.baseline) == ("better", "plain")
    value = precision("better", None) - precision("plain", None)
    low, high = np.quantile(drawn, [0.025, 0.975])
    expected = (value, 2 * value - high, 2 * value - low)
    assert dataclasses.astuple(difference.mAP) == pytest.approx(expected, abs=1e-6)


def test_a_difference_that_is_shown(measured) -> None:
    (difference,) = compared(measured).differences
    assert difference.is_shown
    assert difference.sentence().startswith("better is ahead")
    swapped = compared({name: measured[name] for name in ("better", "plain")}).differences[0]
    assert swapped.sentence().startswith("better is ahead")
    assert f"plain − better: −{100 * difference.mAP.value:.1f} points" in swapped.sentence()


def test_no_difference(tmp_path, measured) -> None:
    again = measured_run(tmp_path / "again", skill=0.2)
    (difference,) = compared({"plain": measured["plain"], "again": again}).differences
    assert difference.mAP == Estimate(0.0, 0.0, 0.0)
    assert difference.sentence().startswith("No difference is shown")


def test_an_undefined_difference_is_called_so(measured) -> None:
    """Neither a difference nor none; and JSON has no NaN."""
    nothing = Estimate(math.nan, math.nan, math.nan)
    comparison = compared(measured)
    (difference,) = comparison.differences
    undefined = dataclasses.replace(difference, mAP=nothing)
    assert undefined.sentence() == "The difference of mAP between better and plain is undefined on these images."
    runs = []
    for run in comparison.runs:
        metrics = {**run.evaluation.metrics, "mAP": Metric(nothing, nothing)}
        evaluation = dataclasses.replace(run.evaluation, metrics=metrics)
        runs.append(dataclasses.replace(run, evaluation=evaluation, history=({"epoch": 1.0, "val_mAP": math.nan},)))
    document = dataclasses.replace(comparison, runs=tuple(runs), differences=(undefined,)).to_dict()
    json.dumps(document, allow_nan=False)
    assert document["differences"][0]["mAP"] == {"value": None, "low": None, "high": None}
    assert document["runs"][0]["history"] == [{"epoch": 1.0, "val_mAP": None}]
    assert "plain –, better –" in document["findings"][0]


def test_findings_say_how_far_they_go(measured) -> None:
    findings = " ".join(compared(measured).findings())
    metric = measured["better"].evaluation.metrics["mAP"]
    assert f"better {metric.model.value / metric.prior.value:.1f}" in findings
    assert "One training of each (seed 3)" in findings


def test_other_images_are_refused(tmp_path, measured) -> None:
    other = measured_run(tmp_path / "other", skill=0.2, data_seed=1)
    with pytest.raises(ValueError, match="other: was measured on other images than plain"):
        compared({"plain": measured["plain"], "other": other})
    with pytest.raises(ValueError, match="at least one run"):
        compare({}, {})


def test_one_run_alone(measured) -> None:
    comparison = compared({"plain": measured["plain"]})
    assert comparison.differences == ()
    assert len(comparison.findings()) == 2


def test_the_table_has_the_figures_of_the_evaluations(measured) -> None:
    lines = comparison_markdown(compared(measured)).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert rows[0] == [
        *("model", "mAP", "95 % interval", "micro AP", "sample AP", "CF1", "OF1", "weights", "training", "images/s")
    ]
    assert [row[0] for row in rows[2:]] == ["constant prior", "plain", "better"]
    for row, name, side in ((rows[2], "plain", "prior"), (rows[3], "plain", "model"), (rows[4], "better", "model")):
        metrics = measured[name].evaluation.metrics
        figures = {metric: getattr(metrics[metric], side) for metric in metrics}
        whole = figures["mAP"]
        assert row[1:7] == [
            f"{100 * whole.value:.1f}",
            f"[{100 * whole.low:.1f}, {100 * whole.high:.1f}]",
            *(f"{100 * figures[metric].value:.1f}" for metric in ("micro_AP", "sample_AP", "CF1@tuned", "OF1@tuned")),
        ]
    assert rows[2][7:] == ["–", "–", "–"]
    assert rows[3][7:] == ["1.23 M", "2 min 13 s", "2"]


def test_the_terminal_shows_the_same_in_100_columns(measured) -> None:
    long = {"a" * 14: measured["plain"], "contextcaps": measured["better"]}
    comparison = compare(long, {name: each.folder.parent for name, each in long.items()})
    stream = io.StringIO()
    Console(file=stream, width=100).print(comparison_table(comparison, "Comparison"))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    for line in comparison_markdown(comparison).splitlines()[2:5]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        shown = next(each for each in text.splitlines() if each.strip().startswith(cells[0]))
        assert shown.split() == " ".join(cells).split()


def test_the_document_is_json(measured) -> None:
    comparison = compared(measured)
    document = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert [run["name"] for run in document["runs"]] == ["plain", "better"]
    assert (
        document["runs"][1]["metrics"]["mAP"]["model"]["value"]
        == comparison.runs[1].evaluation.metrics["mAP"].model.value
    )
    assert document["differences"][0]["mAP"]["low"] == comparison.differences[0].mAP.low
    assert document["findings"] == comparison.findings()


def test_a_run_without_timing(measured) -> None:
    (measured["plain"].folder.parent / "timing.csv").unlink()
    comparison = compared(measured)
    assert math.isnan(comparison.runs[0].images_per_second)
    assert comparison.to_dict()["runs"][0]["seconds"] is None
    assert "| 1.23 M | – | – |" in comparison_markdown(comparison)


def test_a_run_without_an_epoch(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no epoch of this run is finished"):
        read_history(tmp_path)
    (tmp_path / "metrics.csv").write_text("epoch,val_mAP\n1,0.5\n2", encoding="utf-8")
    with pytest.raises(RunError, match="damaged"):
        read_history(tmp_path)


def test_a_run_without_its_facts(measured) -> None:
    (measured["plain"].folder.parent / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match=r"run.json is lost or damaged"):
        compared(measured)

"""The tables of an evaluation: all metrics beside those of the constant prior, and the classes."""

import math
from collections.abc import Callable
from typing import Any

from contextcaps.documents import Cell, Column, Section, Table, count, counted, interval, number, percent
from contextcaps.evaluation.report.evaluation import ClassFigures, Estimate, Evaluation

__all__ = [
    "classes_table",
    "evaluation_tables",
    "metric_interval",
    "metric_label",
    "metric_value",
    "metrics_table",
    "ranked_classes",
    "tuned_warning",
]

_LABELS = {"mAP": "mAP (macro)", "Brier": "Brier score"}
_SHOWN = 5


def metric_label(name: str) -> str:
    """Return what a metric is called in tables.

    >>> metric_label("CF1@0.5"), metric_label("macro_F1@tuned"), metric_label("top3_recall"), metric_label("micro_AP")
    ('CF1', 'macro F1', 'top-3 recall', 'micro AP')
    """
    stem = name.partition("@")[0]
    if stem.startswith("top"):
        k, _, metric = stem[3:].partition("_")
        return f"top-{k} {metric}"
    return _LABELS.get(stem, stem.replace("_", " "))


def _scale(name: str) -> tuple[float, int]:
    """Return by how much a metric is multiplied, and its digits: in percent, but for the Brier score."""
    return (1, 4) if name == "Brier" else (100, 2) if name == "ECE" else (100, 1)


def metric_value(name: str, value: float) -> str:
    """Return a metric's value as it is written."""
    factor, digits = _scale(name)
    return number(factor * value, digits)


def metric_interval(name: str, estimate: Estimate) -> str:
    """Return a metric's interval as it is written, in brackets."""
    factor, digits = _scale(name)
    return interval(estimate, digits, factor)


def evaluation_tables(evaluation: Evaluation) -> list[Table]:
    """Return the tables for the terminal, at most 80 columns wide: the metrics, the best and the worst classes."""
    return [metrics_table(evaluation), classes_table(evaluation, everything=False)]


def metrics_table(evaluation: Evaluation) -> Table:
    """Return all metrics of the model and of the constant prior, with their intervals."""
    columns = (
        Column("metric", align="left"),
        *(
            Column(heading, written)
            for name in ("model", "constant prior")
            for heading, written in ((name, _value_cell), ("95 % interval", _interval_cell))
        ),
    )
    rows: list[Any] = []
    for heading, names in _sections(evaluation):
        rows.append(Section(heading))
        for name in names:
            metric = evaluation.metrics[name]
            model, prior = (name, metric.model), (name, metric.prior)
            rows.append((metric_label(name), Cell(model, "strong") if name == "mAP" else model, model, prior, prior))
    left_out = evaluation.left_out
    title = f"{counted(evaluation.images, 'image')}, {counted(len(evaluation.classes), 'class')}"
    title += f", {left_out} of them without a positive and left out of class means" if left_out else ""
    title += f"; {counted(evaluation.unknown, 'unknown label')} not counted" if evaluation.unknown else ""
    note = (
        "In percent, but for the Brier score. The constant prior gives every image the same scores. "
        f"Intervals: basic bootstrap over images, {evaluation.resamples} "
        f"resamples, seed {evaluation.seed}; where few images show a class, its AP tends to be too high, and the "
        "interval lies below it."
    )
    return Table(title, columns, rows, (note, *tuned_warning(evaluation)), "metrics")


def tuned_warning(evaluation: Evaluation) -> tuple[str, ...]:
    """Return a sentence where tuned thresholds are worse than 0.5 on these images; nothing otherwise."""
    if not evaluation.tuned_worse:
        return ()
    figures = " and ".join(
        f"{name} {percent(evaluation.metrics[f'{name}@tuned'].model.value)} instead of "
        f"{percent(evaluation.metrics[f'{name}@0.5'].model.value)}"
        for name in evaluation.tuned_worse
    )
    return (
        f"The tuned thresholds are worse than 0.5 on these images: {figures}. The validation images were too few, or "
        "unlike these; contextcaps tag --threshold 0.5 does better here.",
    )


def _value_cell(pair: tuple[str, Estimate]) -> str:
    return metric_value(pair[0], pair[1].value)


def _interval_cell(pair: tuple[str, Estimate]) -> str:
    return metric_interval(*pair)


def _sections(evaluation: Evaluation) -> list[tuple[str, list[str]]]:
    """Return the metrics' names under headings, in the order to read them."""
    names = list(evaluation.metrics)
    sections = [
        ("Ranking", ["mAP", "micro_AP", "sample_AP"]),
        ("At threshold 0.5", [name for name in names if name.endswith("@0.5")]),
        ("At tuned thresholds", [name for name in names if name.endswith("@tuned")]),
        ("Best k classes", [name for name in names if name.startswith("top")]),
        ("Calibration", ["ECE", "Brier"]),
    ]
    return [(heading, members) for heading, members in sections if members]


def _of_positives(field: str) -> Callable[[ClassFigures], float]:
    """Return a getter; without a positive, the value is 0 by convention, which says nothing."""
    return lambda each: getattr(each, field) if each.positives else math.nan


_CLASS_COLUMNS: tuple[tuple[Column, Callable[[ClassFigures], Any], bool], ...] = (
    (Column("class", align="left", most=18), lambda each: each.name, True),
    (Column("images", count), lambda each: each.positives, True),
    (Column("AP", percent), lambda each: each.average_precision, True),
    (Column("prior AP", percent), lambda each: each.prior_average_precision, True),
    (Column("P", percent), _of_positives("precision"), False),
    (Column("R", percent), _of_positives("recall"), False),
    (Column("F1", percent), _of_positives("f1"), True),
    (Column("P tuned", percent), _of_positives("tuned_precision"), False),
    (Column("R tuned", percent), _of_positives("tuned_recall"), False),
    (Column("F1 tuned", percent), _of_positives("tuned_f1"), True),
    (Column("threshold", lambda value: number(value, 3)), lambda each: each.threshold, True),
)
"""Each column, its value, and whether the terminal has room for it."""


def classes_table(evaluation: Evaluation, everything: bool) -> Table:
    """Return the classes by average precision, best first.

    Args:
        evaluation: whose classes.
        everything: all classes and columns; else what a terminal has room for, of classes with a positive.
    """
    chosen = [(column, value) for column, value, is_short in _CLASS_COLUMNS if everything or is_short]
    ranked = [each for each in ranked_classes(evaluation) if everything or each.positives]
    rows: list[Any] = [tuple(value(each) for _, value in chosen) for each in ranked]
    title = "Classes by average precision"
    if not everything and len(rows) > 2 * _SHOWN:
        title = f"The {_SHOWN} best and {_SHOWN} worst classes by average precision"
        rows = [*rows[:_SHOWN], Section(), *rows[-_SHOWN:]]
    note = (
        "In percent; images: those that show the class. P, R, F1: precision, recall and F1 at threshold 0.5, then at "
        "the class's own threshold, tuned on validation data."
        if everything
        else "In percent. F1 at threshold 0.5, then at the class's own threshold, tuned on validation data."
    )
    return Table(title, tuple(column for column, _ in chosen), rows, (note,), "classes")


def ranked_classes(evaluation: Evaluation) -> list[ClassFigures]:
    """Return classes by average precision, best first; those without a positive last, all else equal by name."""

    def key(each: ClassFigures) -> tuple[bool, float, str]:
        defined = math.isfinite(each.average_precision)
        return not defined, -each.average_precision if defined else 0.0, each.name

    return sorted(evaluation.classes, key=key)

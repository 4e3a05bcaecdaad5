"""How figures are called and written, the same in the terminal, in Markdown and in plots."""

import math

from contextcaps.evaluation.report.evaluation import ClassFigures, Estimate, Evaluation

__all__ = ["estimate_text", "metric_label", "metric_sections", "number_text", "percent", "ranked_classes", "scale_of"]

_LABELS = {
    "mAP": "mAP (macro)",
    "micro_AP": "micro AP",
    "sample_AP": "sample AP",
    "ECE": "ECE",
    "Brier": "Brier score",
}


def metric_label(name: str) -> str:
    """How a metric is called in tables.

    >>> metric_label("CF1@0.5"), metric_label("macro_F1@tuned"), metric_label("top3_recall")
    ('CF1', 'macro F1', 'top-3 recall')
    """
    if name in _LABELS:
        return _LABELS[name]
    stem = name.partition("@")[0]
    if stem.startswith("top"):
        k, _, metric = stem[3:].partition("_")
        return f"top-{k} {metric}"
    return stem.replace("_", " ")


def metric_sections(evaluation: Evaluation) -> list[tuple[str, list[str]]]:
    """The metrics' names under headings, in the order to read them."""
    names = list(evaluation.metrics)
    top = [name for name in names if name.startswith("top")]
    sections = [
        ("Ranking", ["mAP", "micro_AP", "sample_AP"]),
        ("At threshold 0.5", [name for name in names if name.endswith("@0.5")]),
        ("At tuned thresholds", [name for name in names if name.endswith("@tuned")]),
        ("Best k classes", top),
        ("Calibration", ["ECE", "Brier"]),
    ]
    return [(heading, members) for heading, members in sections if members]


def scale_of(name: str) -> tuple[float, int]:
    """By how much a metric is multiplied in tables, and with how many digits: percent, but for the Brier score."""
    return (1, 4) if name == "Brier" else (100, 2) if name == "ECE" else (100, 1)


def percent(value: float, digits: int = 1) -> str:
    """A share in percent, without the sign; a dash if it is not defined."""
    return number_text(100 * value, digits)


def number_text(value: float, digits: int) -> str:
    """A number with so many digits; a dash for NaN."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"


def estimate_text(name: str, estimate: Estimate) -> tuple[str, str]:
    """A metric's value and its interval in brackets."""
    factor, digits = scale_of(name)
    value, low, high = (number_text(factor * each, digits) for each in (estimate.value, estimate.low, estimate.high))
    return value, f"[{low}, {high}]"


def ranked_classes(evaluation: Evaluation) -> list[ClassFigures]:
    """Classes by average precision, best first; those without a positive last, all else equal by name."""

    def key(each: ClassFigures) -> tuple[bool, float, str]:
        defined = math.isfinite(each.average_precision)
        return not defined, -each.average_precision if defined else 0.0, each.name

    return sorted(evaluation.classes, key=key)

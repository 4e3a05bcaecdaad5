"""An evaluation as a page of Markdown."""

import re
import textwrap
from collections.abc import Mapping

from contextcaps.evaluation.report.evaluation import ClassFigures, Evaluation
from contextcaps.evaluation.report.wording import (
    estimate_text,
    metric_label,
    metric_sections,
    number_text,
    percent,
    ranked_classes,
)

__all__ = ["evaluation_markdown"]


def evaluation_markdown(
    evaluation: Evaluation, title: str, facts: Mapping[str, object], pictures: Mapping[str, str]
) -> str:
    """The page; `pictures` maps file names beside it to what they show."""
    shown = "\n".join(f"![{text}]({name})\n" for name, text in pictures.items())
    return "\n".join(
        [
            f"# {_literal(title)}\n",
            _table(["", ""], [[_literal(name), _literal(value)] for name, value in facts.items()], "ll"),
            "## Metrics\n",
            _means(evaluation),
            _metrics(evaluation),
            shown,
            "## Classes\n",
            "By average precision (AP), in percent. P, R, F1: precision, recall and F1 at threshold 0.5, then at the\n"
            "class's own threshold, tuned on validation data.\n",
            _classes(evaluation),
        ]
    )


def _means(evaluation: Evaluation) -> str:
    left_out, classes = evaluation.left_out, len(evaluation.classes)
    without = (
        f"Left out of all means over classes (mAP, CP, CR, CF1, macro F1), for want of a positive here: {left_out} of "
        f"{classes} classes."
        if left_out
        else f"All {classes} classes have a positive here."
    )
    text = (
        f"On {evaluation.images:,} images with {evaluation.positives:,} labels. In percent, but for the Brier score; "
        f"in brackets, 95 % intervals by bootstrap over images ({evaluation.resamples} resamples, seed "
        f"{evaluation.seed}). The constant prior gives every image the same score for a class, without looking at "
        f"it: how often the class is in the training data, as far as the model says it, or else in these. At tuned "
        f"thresholds it always says every class that it has seen. {without}"
    )
    return textwrap.fill(text, 118) + "\n"


def _metrics(evaluation: Evaluation) -> str:
    rows = []
    for heading, names in metric_sections(evaluation):
        rows.append([f"**{heading}**", "", ""])
        for name in names:
            metric = evaluation.metrics[name]
            rows.append(
                [metric_label(name), *(" ".join(estimate_text(name, each)) for each in (metric.model, metric.prior))]
            )
    return _table(["metric", "model", "constant prior"], rows, "lrr")


def _classes(evaluation: Evaluation) -> str:
    header = ["class", "positives", "AP", "prior AP", "P", "R", "F1", "P tuned", "R tuned", "F1 tuned", "threshold"]
    return _table(header, [_class_row(each) for each in ranked_classes(evaluation)], "l" + "r" * 10)


def _class_row(each: ClassFigures) -> list[str]:
    shares = [each.average_precision, each.prior_average_precision]
    at_thresholds = [
        *(each.precision, each.recall, each.f1),
        *(each.tuned_precision, each.tuned_recall, each.tuned_f1),
    ]
    if each.positives == 0:  # 0 by convention, which says nothing
        at_thresholds = [float("nan")] * 6
    figures = [percent(value) for value in (*shares, *at_thresholds)]
    return [_literal(each.name), f"{each.positives:,}", *figures, number_text(each.threshold, 3)]


def _table(header: list[str], rows: list[list[str]], alignment: str) -> str:
    """Columns padded to one width, so that the source reads as well as the page."""
    cells = [header, *rows]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(header))]

    def line(row: list[str]) -> str:
        padded = (
            text.rjust(width) if side == "r" else text.ljust(width)
            for text, width, side in zip(row, widths, alignment, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    rule = ["-" * (width - 1) + (":" if side == "r" else "-") for width, side in zip(widths, alignment, strict=True)]
    return "\n".join([line(cells[0]), line(rule), *map(line, cells[1:])]) + "\n"


def _literal(text: object) -> str:
    """Text on one line in which nothing is markup."""
    return re.sub(r"([\\`*<|\[])", r"\\\1", " ".join(str(text).split()))

"""An evaluation for the terminal, at most 80 columns wide."""

from rich.table import Table
from rich.text import Text

from contextcaps.evaluation.report.evaluation import ClassFigures, Evaluation
from contextcaps.evaluation.report.wording import (
    estimate_text,
    metric_label,
    metric_sections,
    number_text,
    percent,
    ranked_classes,
)

__all__ = ["evaluation_table"]

_SHOWN = 5


def evaluation_table(evaluation: Evaluation) -> list[Table]:
    """All metrics beside those of the constant prior, and the best and worst classes."""
    return [_metrics_table(evaluation), _classes_table(evaluation)]


def _metrics_table(evaluation: Evaluation) -> Table:
    left_out = evaluation.left_out
    table = Table(
        title=f"{evaluation.images:,} images, {len(evaluation.classes)} classes"
        + (f", {left_out} of them without a positive and left out of class means" if left_out else ""),
        title_justify="left",
        caption=f"In percent, but for the Brier score. Intervals: basic bootstrap over images, {evaluation.resamples} "
        f"resamples, seed {evaluation.seed}; where few images show a class, its AP tends to be too high, and the "
        "interval lies below it.",
        caption_justify="left",
    )
    table.add_column("metric", no_wrap=True)
    for heading in ("model", "95 % interval", "constant prior"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading, names in metric_sections(evaluation):
        table.add_section()
        table.add_row(Text(heading, style="bold"))
        for name in names:
            metric = evaluation.metrics[name]
            # The prior's own intervals are in the files: a terminal has 80 columns. (Text: brackets are no markup.)
            values = [Text(text) for text in (*estimate_text(name, metric.model), estimate_text(name, metric.prior)[0])]
            values[0].stylize("bold" if name == "mAP" else "")
            table.add_row(f"  {metric_label(name)}", *values)
    return table


def _classes_table(evaluation: Evaluation) -> Table:
    defined = [each for each in ranked_classes(evaluation) if each.positives]
    everything = len(defined) <= 2 * _SHOWN
    table = Table(
        title="Classes by average precision" if everything else f"The {_SHOWN} best and {_SHOWN} worst classes",
        title_justify="left",
    )
    table.add_column("class", overflow="ellipsis", no_wrap=True, max_width=18)
    for heading in ("images", "AP", "prior", "F1 at 0.5", "tuned", "threshold"):
        table.add_column(heading, justify="right", no_wrap=True)
    for part in [defined] if everything else [defined[:_SHOWN], defined[-_SHOWN:]]:
        table.add_section()
        for each in part:
            table.add_row(*map(Text, _class_cells(each)))
    return table


def _class_cells(each: ClassFigures) -> list[str]:
    return [
        each.name,
        f"{each.positives:,}",
        percent(each.average_precision),
        percent(each.prior_average_precision),
        percent(each.f1),
        percent(each.tuned_f1),
        number_text(each.threshold, 2),
    ]

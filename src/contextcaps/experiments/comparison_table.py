"""A comparison as a table: on the terminal, at most 100 columns wide, and in Markdown."""

import math

from rich import box
from rich.table import Table
from rich.text import Text

from contextcaps.evaluation.report.evaluation import Estimate, Metric
from contextcaps.evaluation.report.wording import estimate_text, percent
from contextcaps.experiments.comparison import ComparedRun, Comparison

__all__ = ["comparison_markdown", "comparison_table", "duration"]

_HEADINGS = ("model", "mAP", "95 % interval", "micro AP", "sample AP", "CF1", "OF1", "weights", "training", "images/s")
_FIGURES = ("micro_AP", "sample_AP", "CF1@tuned", "OF1@tuned")


def comparison_table(comparison: Comparison, title: str) -> Table:
    """For the terminal."""
    table = Table(
        title=title,
        title_justify="left",
        caption=_caption(comparison),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        show_edge=False,
    )
    for heading in _HEADINGS:
        # Two words above each other: ten columns have to fit.
        text = heading.replace(" ", "\n") if heading.endswith(" AP") else heading
        table.add_column(text, justify="left" if heading == "model" else "right", no_wrap=True, vertical="bottom")
    for row in _rows(comparison):
        cells = [Text(cell) for cell in row]  # an interval's brackets are no markup
        cells[1].stylize("bold")
        table.add_row(*cells, style="dim" if row[0] == "constant prior" else "")
    return table


def comparison_markdown(comparison: Comparison) -> str:
    """For a page."""
    rule = ["---", *["---:"] * (len(_HEADINGS) - 1)]
    rows = [f"| {' | '.join(row)} |" for row in (_HEADINGS, rule, *_rows(comparison))]
    return "\n".join([*rows, "", _caption(comparison)]) + "\n"


def duration(seconds: float) -> str:
    """Seconds in words; a dash if they are not known.

    >>> duration(7.2), duration(133)
    ('7 s', '2 min 13 s')
    """
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _rows(comparison: Comparison) -> list[list[str]]:
    first = comparison.runs[0].evaluation  # the prior is the same for all: same images, same training frequencies
    prior = ["constant prior", *_cells(first.metrics, prior=True), "–", "–", "–"]
    return [prior, *(_row(run) for run in comparison.runs)]


def _row(run: ComparedRun) -> list[str]:
    rate = f"{run.images_per_second:,.0f}" if math.isfinite(run.images_per_second) else "–"
    weights = f"{run.parameters / 1e6:.2f} M"
    return [run.name, *_cells(run.evaluation.metrics), weights, duration(run.seconds), rate]


def _cells(metrics: dict[str, Metric], prior: bool = False) -> list[str]:
    def estimate(name: str) -> Estimate:
        return metrics[name].prior if prior else metrics[name].model

    return [*estimate_text("mAP", estimate("mAP")), *(percent(estimate(name).value) for name in _FIGURES)]


def _caption(comparison: Comparison) -> str:
    evaluation = comparison.runs[0].evaluation
    return (
        f"{comparison.images:,} test images, {len(evaluation.classes)} classes, seed {comparison.seed_text}; in "
        "percent. CF1 and OF1 at thresholds tuned on the validation part; training with its validations. "
        f"Intervals: bootstrap over test images, {evaluation.resamples} resamples."
    )

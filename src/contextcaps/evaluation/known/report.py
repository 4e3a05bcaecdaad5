"""The report on known labels: a table for the terminal, and files."""

import textwrap
from collections.abc import Mapping
from pathlib import Path

from contextcaps.atomic import write_atomically
from contextcaps.documents import (
    Column,
    Table,
    charts,
    count,
    facts_table,
    interval,
    literal,
    percent,
    signed,
    signed_interval,
)
from contextcaps.evaluation.known.measuring import KnownEvaluation
from contextcaps.evaluation.report.evaluation import Estimate
from contextcaps.evaluation.report.files import json_text

__all__ = ["known_table", "write_known"]

_HEADING = "Known labels: mAP on the labels that were not given"
_PREDICTORS = {
    "told": ("told the known labels", charts.MODEL, "o", "-"),
    "nothing": ("the same, told nothing", charts.MUTED, "s", "--"),
    "cooccurrence": ("co-occurrence, no image", charts.PRIOR, "^", ":"),
}
"""Field of `KnownShare` → what it is called, its colour, marker and line."""


def known_table(evaluation: KnownEvaluation, everything: bool = False) -> Table:
    """Return a row for each share.

    Args:
        evaluation: what was measured.
        everything: with all intervals and counts; else what a terminal of 80 columns has room for.
    """
    columns = [Column("known", lambda share: f"{100 * share:g} %")]
    if everything:
        columns += [Column("labels given"), *(Column(name, _with_interval) for name, *_ in _PREDICTORS.values())]
    else:
        columns += [Column(name, lambda each: percent(each.value)) for name in ("told", "nothing", "co-occ.")]
    columns += [Column("gain by telling", _difference), Column("lead over co-occurrence", _difference)]
    columns += [Column("positives left", count)] if everything else []
    rows = []
    for each in evaluation.shares:
        given = [f"{each.given} of {evaluation.classes}"] if everything else []
        left = [each.positives] if everything else []
        rows.append((each.share, *given, each.told, each.nothing, each.cooccurrence, each.gain, each.lead, *left))
    return Table(_HEADING, tuple(columns), rows, (_explained(evaluation),))


def write_known(evaluation: KnownEvaluation, folder: Path, title: str, facts: Mapping[str, object]) -> list[Path]:
    """Write known.json, known.md and known.png into a folder, which is made if need be; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    _draw(evaluation, folder / "known.png", title, facts)
    page = [
        f"# {literal(title)}: known labels\n",
        facts_table(facts).to_markdown(None),
        "## mAP on the labels that were not given\n",
        textwrap.fill(_explained(evaluation), 118) + "\n",
        known_table(evaluation, everything=True).to_markdown(None),
        f"![{_HEADING}](known.png)\n",
    ]
    write_atomically(folder / "known.json", json_text(title, facts, evaluation.to_dict()))
    write_atomically(folder / "known.md", "\n".join(page))
    return [folder / name for name in ("known.png", "known.json", "known.md")]


def _with_interval(estimate: Estimate) -> str:
    return f"{percent(estimate.value)} {interval(estimate)}"


def _difference(estimate: Estimate) -> str:
    return f"{signed(estimate.value)} {signed_interval(estimate)}"


def _explained(evaluation: KnownEvaluation) -> str:
    left_out = [f"{each.left_out} at {100 * each.share:g} %" for each in evaluation.shares if each.left_out]
    without = f" Classes left out for want of a positive that was not given: {', '.join(left_out)}." if left_out else ""
    return (
        f"In percent, with 95 % intervals (basic bootstrap over {evaluation.images:,} images, {evaluation.resamples} "
        f"resamples, seed {evaluation.seed}). Each image's given labels, present and absent, are drawn at random; each "
        "class is ranked over the images where it was not given. Co-occurrence knows the same labels and never sees "
        f"the image: {evaluation.cooccurrence}, fitted to the labels of {evaluation.train_images:,} training images."
        + without
    )


def _draw(evaluation: KnownEvaluation, path: Path, title: str, facts: Mapping[str, object]) -> None:
    """Draw mAP against the share that is known, a line with intervals for each predictor."""
    resampled = f"{evaluation.resamples} resamples of {evaluation.images:,} images, seed {evaluation.seed}"
    metadata = {"Title": title, "Description": f"seed: {evaluation.seed}"}
    with charts.picture(path, 6.5, 5.4, metadata) as figure:
        axes = figure.subplots()
        shares = [100 * each.share for each in evaluation.shares]
        for field, (name, colour, marker, line) in _PREDICTORS.items():
            found = [getattr(each, field) for each in evaluation.shares]
            charts.draw_intervals(axes, shares, found, color=colour, marker=marker, linestyle=line, label=name)
        axes.set(xlim=(0, 100), xlabel="labels of each image that are known (%)", ylabel="mAP on the others (%)")
        axes.set_xticks(shares)
        charts.plain_axes(axes)
        charts.legend_above(axes)
        caption = charts.caption_lines(facts, f"95 % intervals: {resampled}")
        charts.frame(figure, f"{_HEADING}\n{title}", caption)

"""What known labels are worth, as files and for the terminal."""

import io
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from contextcaps.atomic import write_atomically
from contextcaps.evaluation.known.measuring import KnownEvaluation, KnownShare
from contextcaps.evaluation.report.evaluation import Estimate

# One look for all figures and pages of an evaluation.
from contextcaps.evaluation.report.markdown import _literal, _table
from contextcaps.evaluation.report.plots import _GRID, _MODEL, _MUTED, _PRIOR, _frame, _legend_above, _short
from contextcaps.evaluation.report.wording import percent
from contextcaps.extras import import_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["known_table", "write_known"]

_HEADING = "Known labels: mAP on the labels that were not given"
_PREDICTORS = {
    "told": ("told the known labels", _MODEL, "o", "-"),
    "nothing": ("the same, told nothing", _MUTED, "s", "--"),
    "cooccurrence": ("co-occurrence, no image", _PRIOR, "^", ":"),
}
"""Field of `KnownShare` → what it is called, its colour, marker and line."""


def known_table(evaluation: KnownEvaluation) -> Table:
    """The shares in the terminal, at most 80 columns wide."""
    table = Table(title=_HEADING, title_justify="left", caption=_explained(evaluation), caption_justify="left")
    for heading in ("known", "told", "nothing", "co-occ.", "gain by telling", "lead over co-occ."):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in evaluation.shares:
        figures = [percent(estimate.value) for estimate in (each.told, each.nothing, each.cooccurrence)]
        table.add_row(*map(Text, [f"{100 * each.share:g} %", *figures, *_differences(each)]))
    return table


def write_known(evaluation: KnownEvaluation, folder: Path, title: str, facts: Mapping[str, object]) -> list[Path]:
    """Write known.json, known.md and known.png into a folder, which is made if need be; gives the files."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    _draw(evaluation, title, facts).savefig(
        buffer, format="png", dpi=120, metadata={"Title": title, "Description": f"seed: {evaluation.seed}"}
    )
    document = {
        "title": title,
        "facts": {name: value if isinstance(value, int | str) else str(value) for name, value in facts.items()},
        **evaluation.to_dict(),
    }
    contents: dict[str, str | bytes] = {
        "known.png": buffer.getvalue(),
        "known.json": json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        "known.md": _page(evaluation, title, facts),
    }
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]


def _page(evaluation: KnownEvaluation, title: str, facts: Mapping[str, object]) -> str:
    names = [name for name, *_ in _PREDICTORS.values()]
    header = ["known", "labels given", *names, "gain by telling", "lead over co-occurrence", "positives left"]
    rows = []
    for each in evaluation.shares:
        figures = [f"{percent(one.value)} {_interval(one)}" for one in (each.told, each.nothing, each.cooccurrence)]
        given = f"{each.given} of {evaluation.classes}"
        rows.append([f"{100 * each.share:g} %", given, *figures, *_differences(each), f"{each.positives:,}"])
    left_out = [f"{each.left_out} at {100 * each.share:g} %" for each in evaluation.shares if each.left_out]
    without = f" Classes left out for want of a positive that was not given: {', '.join(left_out)}." if left_out else ""
    return "\n".join(
        [
            f"# {_literal(title)}: known labels\n",
            _table(["", ""], [[_literal(name), _literal(value)] for name, value in facts.items()], "ll"),
            "## mAP on the labels that were not given\n",
            textwrap.fill(_explained(evaluation) + without, 118) + "\n",
            _table(header, rows, "r" * len(header)),
            f"![{_HEADING}](known.png)\n",
        ]
    )


def _differences(share: KnownShare) -> list[str]:
    """What telling gains, and how far that is above co-occurrence, each with its interval."""
    return [f"{_signed(one.value)} {_interval(one)}" for one in (share.gain, share.lead)]


def _explained(evaluation: KnownEvaluation) -> str:
    return (
        f"In percent, with 95 % intervals (basic bootstrap over {evaluation.images:,} images, {evaluation.resamples} "
        f"resamples, seed {evaluation.seed}). Each image's given labels, present and absent, are drawn at random; each "
        "class is ranked over the images where it was not given. Co-occurrence knows the same labels and never sees "
        f"the image: {evaluation.cooccurrence}, fitted to the labels of {evaluation.train_images:,} training images."
    )


def _draw(evaluation: KnownEvaluation, title: str, facts: Mapping[str, object]) -> "Figure":
    """mAP against the share that is known, a line and a band for each predictor."""
    figure_class = import_extra("matplotlib.figure", "train", "plots of an evaluation").Figure
    font = import_extra("matplotlib", "train", "plots of an evaluation").rc_context(
        {"font.family": "DejaVu Sans", "font.size": 10, "text.parse_math": False}
    )
    with font:
        figure = figure_class(figsize=(6.5, 5.4), layout="constrained")
        axes = figure.subplots()
        shares = [100 * each.share for each in evaluation.shares]
        for field, (name, colour, marker, line) in _PREDICTORS.items():
            found: list[Estimate] = [getattr(each, field) for each in evaluation.shares]
            low, high = ([100 * getattr(each, end) for each in found] for end in ("low", "high"))
            values = [100 * each.value for each in found]
            axes.errorbar(
                shares,
                values,
                # A basic interval need not hold its value where few images show a class.
                yerr=[
                    [max(0.0, value - end) for value, end in zip(values, low, strict=True)],
                    [max(0.0, end - value) for value, end in zip(values, high, strict=True)],
                ],
                color=colour,
                marker=marker,
                linestyle=line,
                linewidth=1.8,
                markersize=6,
                capsize=3,
                elinewidth=1,
                label=name,
            )
        axes.set(xlim=(0, 100), xlabel="labels of each image that are known (%)", ylabel="mAP on the others (%)")
        axes.set_xticks(shares)
        axes.grid(color=_GRID)
        _legend_above(axes, columns=1)
        told = (
            f"95 % intervals: {evaluation.resamples} resamples of {evaluation.images:,} images, seed {evaluation.seed}"
        )
        shown = [f"{name}: {_short(str(value), 60)}" for name, value in facts.items()]
        whole = [text.replace(" ", "\N{NO-BREAK SPACE}") for text in (*shown, told)]  # lines end between facts only
        caption = textwrap.fill(" · ".join(whole), 105)
        _frame(figure, _HEADING, title, caption)
    return figure


def _signed(value: float) -> str:
    return f"{100 * value:+.1f}"


def _interval(estimate: Estimate) -> str:
    return f"[{percent(estimate.low)}, {percent(estimate.high)}]"

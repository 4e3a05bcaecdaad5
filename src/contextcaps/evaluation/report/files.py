"""The files of an evaluation report: JSON, a page of Markdown and the plots, each written whole or not at all."""

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contextcaps.atomic import write_atomically
from contextcaps.documents import counted, facts_table, literal
from contextcaps.evaluation.report.evaluation import Evaluation
from contextcaps.evaluation.report.plots import PICTURES, draw_pictures
from contextcaps.evaluation.report.tables import classes_table, metrics_table, tuned_warning
from contextcaps.models.trained import without_folders

__all__ = ["json_text", "write_report"]


def write_report(evaluation: Evaluation, folder: Path, title: str, facts: Mapping[str, object]) -> list[Path]:
    """Write evaluation.json, evaluation.md and the plots into a folder, which is made if need be.

    Args:
        evaluation: what to report.
        folder: files of these names in it are replaced.
        title: of the page and the plots.
        facts: data, split, images, seed, model, date, hardware and the like; in both documents. The seeds, of facts
            and of the resampling, are in the plots' captions and metadata, too.

    Returns:
        The files.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    passed_on = {key: without_folders(str(value)) if key == "data" else value for key, value in facts.items()}
    pictures = draw_pictures(evaluation, folder, title, passed_on)
    # The documents come last: where they are, the plots they speak of are, too.
    write_atomically(folder / "evaluation.json", json_text(title, facts, evaluation.to_dict()))
    write_atomically(folder / "evaluation.md", _markdown(evaluation, title, facts))
    return [folder / "evaluation.json", folder / "evaluation.md", *pictures]


def json_text(title: str, facts: Mapping[str, object], document: Mapping[str, Any]) -> str:
    """Return a report as JSON: its title, its facts as plain values, and all numbers."""
    plain = {
        key: value if value is None or isinstance(value, bool | int | str) else str(value)
        for key, value in facts.items()
    }
    return (
        json.dumps({"title": title, "facts": plain, **document}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )


def _markdown(evaluation: Evaluation, title: str, facts: Mapping[str, object]) -> str:
    return "\n".join(
        [
            f"# {literal(title)}\n",
            facts_table(facts).to_markdown(None),
            "## Metrics\n",
            textwrap.fill(_explained(evaluation), 118) + "\n",
            metrics_table(evaluation).to_markdown(None),
            *(f"**{textwrap.fill(sentence, 114)}**\n" for sentence in tuned_warning(evaluation)),
            *(f"![{text}]({name})\n" for name, text in PICTURES.items()),
            classes_table(evaluation, everything=True).to_markdown(),
        ]
    )


def _explained(evaluation: Evaluation) -> str:
    left_out, classes = evaluation.left_out, counted(len(evaluation.classes), "class")
    without = (
        f"Left out of all means over classes (mAP, CP, CR, CF1, macro F1), for want of a positive here: {left_out} of "
        f"{classes}."
        if left_out
        else f"All {classes} have a positive here."
    )
    pairs = evaluation.images * len(evaluation.classes)
    unknown = (
        f" {evaluation.unknown:,} of {pairs:,} pairs of image and class count nowhere, as the data do not know them."
        if evaluation.unknown
        else ""
    )
    return (
        f"On {counted(evaluation.images, 'image')} with {counted(evaluation.positives, 'label')}.{unknown} In percent, "
        "but for the Brier score; in brackets, 95 % intervals by bootstrap over images "
        f"({evaluation.resamples} resamples, seed {evaluation.seed}). The constant prior gives every image the same "
        "score for a class, without looking at it: how often the class is in the training data, as far as the model "
        f"says it, or else in these. At tuned thresholds it always says every class that it has seen. {without}"
    )

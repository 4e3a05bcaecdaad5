"""The files of an evaluation report, each written whole or not at all."""

import io
import json
from collections.abc import Mapping
from pathlib import Path

from contextcaps.atomic import write_atomically
from contextcaps.evaluation.report.evaluation import Evaluation
from contextcaps.evaluation.report.markdown import evaluation_markdown
from contextcaps.evaluation.report.plots import PICTURES, draw_pictures

__all__ = ["write_report"]


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
    written = []
    description = {**facts, "resamples": evaluation.resamples, "seed of the resampling": evaluation.seed}
    for name, figure in draw_pictures(evaluation, title, facts).items():
        buffer = io.BytesIO()
        figure.savefig(
            buffer,
            format="png",
            dpi=120,
            metadata={"Title": title, "Description": "; ".join(f"{key}: {each}" for key, each in description.items())},
        )
        written.append(_write(folder / name, buffer.getvalue()))
    document = {"title": title, "facts": {key: _fact(value) for key, value in facts.items()}, **evaluation.to_dict()}
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    page = evaluation_markdown(evaluation, title, facts, PICTURES)
    # The documents come last: where they are, the plots they speak of are, too.
    return [
        _write(folder / "evaluation.json", text),
        _write(folder / "evaluation.md", page),
        *written,
    ]


def _fact(value: object) -> object:
    return value if isinstance(value, bool | int | str) or value is None else str(value)


def _write(path: Path, content: str | bytes) -> Path:
    write_atomically(path, content)
    return path

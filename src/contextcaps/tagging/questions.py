"""Which labels to ask of each image: those that would settle most of its other labels, if they were known."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contextcaps.atomic import write_atomically
from contextcaps.data import Source
from contextcaps.data.images import BadImage
from contextcaps.data.loading import StreamLoader
from contextcaps.data.problems import DataError, OnBad, Problem
from contextcaps.data.unknown import labels_or_nan
from contextcaps.documents import Column, Table
from contextcaps.evaluation.scoring import class_order
from contextcaps.models.expected_drops import expected_drops
from contextcaps.out_of_memory import memory_for
from contextcaps.tagging.known import known_row
from contextcaps.tagging.pixels import name_of, pixels_of
from contextcaps.tagging.tagger import Tagger

__all__ = ["Question", "Questions", "ask_image", "ask_labels", "questions_table", "write_questions"]

_COLUMNS = ("image", "class", "settles", "score")
_SHOWN = 20
"""Images that a terminal shows at most."""


@dataclasses.dataclass(frozen=True)
class Question:
    """A class to ask about in an image: is it there?"""

    name: str
    settles: float
    """Expected drop of the entropy of the image's other open labels, in bits (`contextcaps.models.expected_drops`)."""
    score: float
    """The class's score, with what is known told."""


@dataclasses.dataclass(frozen=True)
class Questions:
    """What to ask of the images of a source."""

    data: str
    images: tuple[tuple[str, tuple[Question, ...]], ...]
    """A sample's id, and the classes to ask about it, those that settle most first; in the source's order."""
    told: bool
    """Whether labels of the data were told; False where it leaves none open, so that all are asked as if unknown."""
    problems: tuple[Problem, ...] = ()
    """Images that could not be read."""


def ask_image(
    tagger: Tagger, image: Any, count: int | None = None, known: Mapping[str, bool] | None = None
) -> tuple[Question, ...]:
    """Return the classes to ask about one image, those that settle most first.

    Ask the first, add the answer to `known`, and ask again: the rest is then chosen in its light.

    Args:
        tagger: with a model that can be told labels.
        image: as for `Tagger.tag`.
        count: so many at most; None for all classes that are not known.
        known: class → whether it is present.
    """
    _require_count(count)
    row = torch.from_numpy(known_row(known or {}, tagger.classes))  # [J]
    try:
        pixels = pixels_of(image, tagger.config.image_size)
    except BadImage as error:
        name = name_of(image, 0)
        raise DataError(f"{name if isinstance(name, str) else 'the image'}: {error}") from None
    drops, scores = _drops(tagger, torch.from_numpy(pixels[None]), row[None])  # [1, J]
    return _chosen(drops[0], scores[0], tagger.classes, count)


def ask_labels(
    source: Source,
    tagger: Tagger,
    count: int = 5,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    on_bad: OnBad | None = None,
    tell: Callable[[int], None] = lambda count: None,
) -> Questions:
    """Choose for each image of a source the labels that would settle most of its others, if they were known.

    Labels that the data leave open are asked, and all others told. Where the data leave none open, nothing is told, and
    all classes are asked.

    Args:
        source: images, with the model's classes.
        tagger: with a model that can be told labels.
        count: labels for each image, at most.
        batch_size: images to compute at once.
        workers: images to decode at once.
        on_bad: stop at images that cannot be read, or skip them; by default as the source was opened.
        tell: called with the number of images done since its last call.

    Raises:
        DataError: the source has other classes than the model.
        ValueError: the model cannot be told labels.
    """
    _require_count(count)
    tagger.config.require_takes_known()
    order = class_order(tagger.network, source)  # [J], of each of the model's classes among the source's
    names = tuple(source.classes[place] for place in order)
    told = any(source.unknown_of(index) for index in range(len(source)))
    found: dict[int, tuple[Question, ...]] = {}
    loader = StreamLoader(source, tagger.config.image_size, batch_size, workers=workers, on_bad=on_bad)
    for batch in loader:
        labels = labels_or_nan(batch.targets)[:, order]  # [B, J], classes as the model has them
        drops, scores = _drops(tagger, batch.images, labels if told else torch.full_like(labels, math.nan))  # [B, J]
        for place, index in enumerate(batch.indices.tolist()):
            found[index] = _chosen(drops[place], scores[place], names, count)
        tell(len(batch))
    images = tuple((source.id_of(index), found[index]) for index in sorted(found) if found[index])
    return Questions(source.name, images, told, tuple(loader.problems.found))


def questions_table(questions: Questions) -> Table:
    """Return what to ask of the first images, for a terminal."""
    columns = (
        Column("image", align="left", most=40),
        Column("ask", align="left", most=24),
        Column("settles (bits)", "{:.2f}".format),
        Column("then", align="left", wrap=True),
    )
    rows = [
        (image, asked[0].name, asked[0].settles, ", ".join(each.name for each in asked[1:5]))
        for image, asked in questions.images[:_SHOWN]
    ]
    note = "settles: by how much the answer is expected to lower the entropy of the image's other open labels. " + (
        "All labels that the data know were told." if questions.told else "No label was told: the data leave none open."
    )
    return Table("What to ask of each image", columns, rows, (note,), empty="No label is open.")


def write_questions(questions: Questions, path: Path | str) -> None:
    """Write a row for each question as CSV, or an object for each image as JSON lines, as the name ends."""
    path = Path(path)
    content = io.StringIO(newline="")
    if path.suffix.lower() == ".csv":
        table = csv.writer(content, lineterminator="\n")
        table.writerow(_COLUMNS)
        for image, asked in questions.images:
            table.writerows((image, each.name, f"{each.settles:.6f}", f"{each.score:.6f}") for each in asked)
    else:
        for image, asked in questions.images:
            rows = [
                {"class": each.name, "settles": round(each.settles, 6), "score": round(each.score, 6)} for each in asked
            ]
            content.write(json.dumps({"image": image, "ask": rows}, ensure_ascii=False) + "\n")
    # Names of files may be no UTF-8; their bytes are kept.
    write_atomically(path, content.getvalue().encode("utf-8", "surrogateescape"))


def _drops(tagger: Tagger, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return expected drops and scores [B, J] of images [B, 3, H, W] with labels [B, J] told."""
    with torch.inference_mode(), memory_for(len(images), tagger.device):
        features = tagger.features(images)  # [B, C, H, W]
        drops, scores = expected_drops(tagger.network, features, labels.to(features.device))
    if not bool(scores.isfinite().all()):
        raise ValueError("the model gives scores that are no numbers: are its weights damaged?")
    return drops.float().cpu(), scores.float().cpu()


def _chosen(drops: Tensor, scores: Tensor, names: tuple[str, ...], count: int | None) -> tuple[Question, ...]:
    """Return the open classes with the largest drops [J]."""
    order = drops.nan_to_num(-math.inf).argsort(descending=True, stable=True)[: int((~drops.isnan()).sum())]
    return tuple(Question(names[k], float(drops[k]), float(scores[k])) for k in order.tolist()[:count])


def _require_count(count: int | None) -> None:
    if count is not None and count < 1:
        raise ValueError(f"ask: expected at least 1 label of each image, got {count}")

"""A picture of tagged images: beneath each what is true and what the model said, right, wrong or missed."""

import dataclasses
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from contextcaps.documents.charts import picture
from contextcaps.tagging import Tagging

__all__ = ["JudgedTag", "TaggedImage", "judge", "write_gallery"]

Verdict = Literal["right", "wrong", "missed"]

# A sign besides the colour, for those who cannot tell the colours apart.
_SIGNS: dict[Verdict, tuple[str, str]] = {
    "right": ("✓", "#12722f"),
    "wrong": ("✗", "#c1121f"),
    "missed": ("–", "#777777"),
}
_COLUMNS = 3
_CELL, _GAP, _LINE = 3.6, 0.35, 0.185  # inches: a picture's side, between cells, a line of text
_TRUTH_WIDTH = 48  # characters


@dataclasses.dataclass(frozen=True)
class JudgedTag:
    """A class that is in the image, or that the model said is."""

    name: str
    score: float
    threshold: float
    """The score from which the model says that the class is present."""
    verdict: Verdict
    """Said and true, said but not true, or true but not said."""


@dataclasses.dataclass(frozen=True)
class TaggedImage:
    """An image with its true classes and what the model said of it."""

    name: str
    pixels: np.ndarray
    """[H, W, 3], uint8."""
    truth: tuple[str, ...]
    tags: tuple[JudgedTag, ...]
    """As `judge` gives them."""


def judge(
    tagging: Tagging, truth: Iterable[str], classes: Sequence[str], thresholds: Sequence[float]
) -> tuple[JudgedTag, ...]:
    """Hold a model's tags against the truth: first what it said, then what it missed, each with the best score first.

    Args:
        tagging: with scores.
        truth: names of the classes that the image shows.
        classes: [J], of the model.
        thresholds: [J], of the model.
    """
    true = frozenset(truth)
    unknown = sorted(true - set(classes))
    if unknown:
        raise ValueError(f"truth: expected classes of the model, got {', '.join(unknown)}")
    if tagging.scores is None:
        raise ValueError(f"{tagging.image}: was not tagged: {tagging.error}")
    said = [
        JudgedTag(tag.name, tag.score, tag.threshold, "right" if tag.name in true else "wrong") for tag in tagging.tags
    ]
    names = {tag.name for tag in tagging.tags}
    missed = [
        JudgedTag(name, score, threshold, "missed")
        for name, score, threshold in zip(classes, tagging.scores.tolist(), thresholds, strict=True)
        if name in true - names
    ]
    return *said, *sorted(missed, key=lambda tag: -tag.score)


def write_gallery(images: Sequence[TaggedImage], path: Path | str, title: str, caption: str) -> None:
    """Draw tagged images, three in a row, as PNG.

    Args:
        images: what to draw.
        path: the file; it is replaced whole or not at all.
        title: such as the model and the data.
        caption: how the images were chosen, the seed and the like.
    """
    if not images:
        raise ValueError("images: expected at least one")
    rows = [images[first : first + _COLUMNS] for first in range(0, len(images), _COLUMNS)]
    texts = [max(_text_height(image) for image in row) for row in rows]  # inches
    columns = min(_COLUMNS, len(images))
    width = max(columns * _CELL + (columns + 1) * _GAP, 7.5)
    header, footer = 0.95, 0.2 + _LINE * len(_caption_lines(caption, width))
    height = header + footer + sum(_CELL + text + _GAP for text in texts)
    metadata = {"Title": title, "Description": caption}
    with picture(Path(path), width, height, metadata, layout=None) as figure:
        _write_text(figure, _GAP, height - 0.42, title, size=14, weight="bold")
        legend = _GAP
        for verdict, (sign, colour) in _SIGNS.items():
            _write_text(figure, legend, height - 0.72, f"{sign} {verdict}", colour=colour, size=10)
            legend += 0.95
        top = height - header
        for row, text in zip(rows, texts, strict=True):
            for column, image in enumerate(row):
                _draw(figure, image, _GAP + column * (_CELL + _GAP), top)
            top -= _CELL + text + _GAP
        for number, line in enumerate(_caption_lines(caption, width)):
            _write_text(figure, _GAP, footer - 0.05 - _LINE * number, line, colour="#555555", size=8.5)


def _draw(figure: Any, image: TaggedImage, left: float, top: float) -> None:
    """Draw a picture and its true and predicted classes beneath it."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, (top - _CELL) / height, _CELL / width, _CELL / height))
    # Pixels stay pixels: a blurred small picture would hide how little the model sees.
    axes.imshow(image.pixels, interpolation="nearest")
    axes.set_axis_off()
    y = top - _CELL - 0.22
    for line in _truth_lines(image):
        _write_text(figure, left, y, line, size=9.5)
        y -= _LINE
    y -= 0.06
    half = _half(image)
    for number, tag in enumerate(image.tags):
        sign, colour = _SIGNS[tag.verdict]
        column, row = divmod(number, half)
        _write_text(
            figure, left + column * _CELL / 2, y - row * _LINE, f"{sign} {tag.name}  {tag.score:.2f}", colour=colour
        )


def _truth_lines(image: TaggedImage) -> list[str]:
    return textwrap.wrap(f"true: {', '.join(image.truth) or 'none'}", _TRUTH_WIDTH)


def _half(image: TaggedImage) -> int:
    """Return the lines of each of the two columns of tags."""
    return max(1, (len(image.tags) + 1) // 2)


def _text_height(image: TaggedImage) -> float:
    return 0.28 + _LINE * (len(_truth_lines(image)) + _half(image))


def _caption_lines(caption: str, width: float) -> list[str]:
    return textwrap.wrap(caption, int((width - 2 * _GAP) * 14.5))


def _write_text(
    figure: Any, x: float, y: float, text: str, colour: str = "#222222", size: float = 9.5, **style: Any
) -> None:
    """Write text with its left end at a place in inches."""
    width, height = figure.get_size_inches()
    figure.text(x / width, y / height, text, color=colour, fontsize=size, **style)

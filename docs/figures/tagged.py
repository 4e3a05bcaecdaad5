"""The picture of tagged scenes in the README: three drawn test images, with what a small `contextcaps` says of each.

`python docs/figures/tagged.py RUN` draws tagged.png beside this file. RUN is a run of some minutes on a CPU:

    contextcaps train --data 'scenes?split=train&count=3000&size=32' \
        --val-data 'scenes?split=validation&count=500&size=32' --model contextcaps --set capsules.types=4 \
        --image-size 32 --backbone small --epochs 8 --batch-size 32 --lr 0.002 --accelerator cpu --out RUN

The images are the first test scene of three kinds, whatever the network says of them.
"""

import dataclasses
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from contextcaps.data import open_source
from contextcaps.documents.charts import picture
from contextcaps.tagging import JudgedTag, judge, load

KINDS, SIZE = ("coast", "street", "living room"), 192

# A sign besides the colour, for those who cannot tell the colours apart.
_SIGNS = {
    "right": ("✓", "#12722f"),
    "wrong": ("✗", "#c1121f"),
    "missed": ("–", "#777777"),
}
_COLUMNS = 3
_CELL, _GAP, _LINE = 3.6, 0.35, 0.185  # inches: a picture's side, between cells, a line of text
_TRUTH_WIDTH = 48  # characters


@dataclasses.dataclass(frozen=True)
class TaggedImage:
    """An image with its true classes and what the model said of it."""

    name: str
    pixels: np.ndarray
    """[H, W, 3], uint8."""
    truth: tuple[str, ...]
    tags: tuple[JudgedTag, ...]
    """As `judge` gives them."""


def main(run: str) -> None:
    source = open_source("scenes", split="test", count=1000, size=SIZE)
    chosen = [next(i for i in range(len(source)) if source.scene_kind(i) == kind) for kind in KINDS]
    samples = [source[index] for index in chosen]
    tagger = load(run, "cpu")
    images = []
    for sample, tagging in zip(samples, tagger.tag([sample.image for sample in samples], on_bad="stop"), strict=True):
        truth = tuple(source.classes[label] for label in sample.labels)
        tags = judge(tagging, truth, tagger.classes, tagger.thresholds)
        images.append(TaggedImage(sample.id, np.asarray(sample.image), truth, tags))
    draw(
        images,
        Path(__file__).with_suffix(".png"),
        "contextcaps on drawn scenes",
        f"The first test scene of three kinds ({', '.join(KINDS)}), whatever the network says of it. Trained for 8 "
        "epochs on 3,000 scenes of 32×32 px on a CPU, seed 0; drawn larger than the network sees them.",
    )


def draw(images: Sequence[TaggedImage], path: Path | str, title: str, caption: str) -> None:
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
                _draw_image(figure, image, _GAP + column * (_CELL + _GAP), top)
            top -= _CELL + text + _GAP
        for number, line in enumerate(_caption_lines(caption, width)):
            _write_text(figure, _GAP, footer - 0.05 - _LINE * number, line, colour="#555555", size=8.5)


def _draw_image(figure: Any, image: TaggedImage, left: float, top: float) -> None:
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


if __name__ == "__main__":
    main(*sys.argv[1:])

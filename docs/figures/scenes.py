"""The contact sheet of the built-in source `scenes`: six pictures of each kind of scene, with their labels.

`python docs/figures/scenes.py` regenerates scenes.png beside this file; the same pixels each time with one version of
Pillow. Lengths are in pixels.
"""

import textwrap
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from contextcaps.data.sources.scenes import ScenesSource
from contextcaps.data.sources.scenes.world import KINDS

PICTURE, GAP, ROWS, SEED = 96, 12, 6, 26
CAPTION, LINE, LETTERS = 56, 11, 20  # height under a picture, height of a line, letters in it
HEADING, MARGIN = 48, 16
INK, MUTED, PAPER = "#1f2937", "#566273", "#fbfcfe"


def main() -> None:
    source = ScenesSource(count=400, size=PICTURE, seed=SEED)
    columns = [[index for index in range(len(source)) if source.scene_kind(index) == kind.name] for kind in KINDS]
    width = 2 * MARGIN + len(KINDS) * (PICTURE + GAP) - GAP
    height = 2 * MARGIN + HEADING + ROWS * (PICTURE + CAPTION)
    sheet = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(sheet)
    title, heading, body = (ImageFont.load_default(size) for size in (16, 13, 9.5))
    pen.text((MARGIN, MARGIN - 4), f'open_source("scenes", size={PICTURE}, seed={SEED})', INK, title)
    for column, kind in enumerate(KINDS):
        left = MARGIN + column * (PICTURE + GAP)
        pen.text((left, MARGIN + 24), kind.name, INK, heading)
        for row, index in enumerate(columns[column][:ROWS]):
            top = MARGIN + HEADING + row * (PICTURE + CAPTION)
            sheet.paste(Image.fromarray(source.drawing(index).image), (left, top))
            names = ", ".join(source.classes[label] for label in source.labels_of(index))
            for number, line in enumerate(textwrap.wrap(names, LETTERS)):
                pen.text((left, top + PICTURE + 3 + number * LINE), line, MUTED, body)
    sheet.save(Path(__file__).with_suffix(".png"), optimize=True)


if __name__ == "__main__":
    main()

"""A source for tests: small JPEG files in a folder, made when asked for, with boxes and masks if wanted."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from contextcaps.data.problems import OnBad
from contextcaps.data.sample import Boxes, Sample
from contextcaps.data.source import Source

HEIGHT, WIDTH = 48, 64


class PictureSource(Source):
    """Pictures 0000.jpg and on; picture i shows the classes that are i's bits, and has i mod 3 boxes.

    Args:
        folder: where the pictures are, or are made.
        count: how many.
        boxes, masks: whether to give any; masks only for every second picture.
        slow: seconds that reading a picture takes longer.
        log: file that gets a byte for each picture read.
    """

    kind = "pictures"
    classes = tuple(f"bit {bit}" for bit in range(6))

    def __init__(
        self,
        folder: Path,
        count: int = 40,
        on_bad: OnBad = "stop",
        boxes: bool = False,
        masks: bool = False,
        slow: float = 0.0,
        log: Path | None = None,
    ) -> None:
        super().__init__(f"pictures:{folder.name}", on_bad)
        self.folder, self.count, self.boxes, self.masks, self.slow, self.log = folder, count, boxes, masks, slow, log
        folder.mkdir(exist_ok=True)
        generator = np.random.default_rng(0)
        for index in range(count):
            coarse = Image.fromarray(generator.integers(0, 256, (5, 7, 3), dtype=np.uint8))
            if not self.path(index).exists():
                coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(self.path(index), quality=90)
        self._settle()

    def path(self, index: int) -> Path:
        return self.folder / f"{index:04d}.jpg"

    def __len__(self) -> int:
        return self.count

    def labels_of(self, index: int) -> tuple[int, ...]:
        return tuple(bit for bit in range(6) if index >> bit & 1)

    def boxes_of(self, index: int) -> Boxes:
        many = index % 3
        corners = np.linspace(0, 1, 4 * many, dtype=np.float32).reshape(many, 4)
        return Boxes(np.arange(many, dtype=np.int64), corners)

    def mask_of(self, index: int) -> np.ndarray:
        mask = np.zeros((HEIGHT, WIDTH), np.int32)
        mask[:, WIDTH // 2 :] = index % 6 + 1
        return mask

    def sample(self, index: int) -> Sample:
        time.sleep(self.slow)
        if self.log is not None:
            with self.log.open("ab") as file:
                file.write(b".")
        return Sample(
            f"{index:04d}",
            self.path(index),
            self.labels_of(index),
            self.boxes_of(index) if self.boxes else None,
            (lambda: self.mask_of(index)) if self.masks and index % 2 else None,
        )

    def _identity(self) -> Iterator[str]:
        yield f"{self.count} {self.boxes} {self.masks}"
        for index in range(self.count):
            status = self.path(index).stat()
            yield f"{self.path(index).name} {status.st_size} {status.st_mtime_ns}"


class PatternSource(PictureSource):
    """The same as pixels made in Python, as `scenes` does it."""

    kind = "patterns"

    def sample(self, index: int) -> Sample:
        time.sleep(self.slow)
        pixels = np.full((HEIGHT, WIDTH, 3), index, dtype=np.uint8)
        pixels[:10, :20] = (255, 0, 128)
        return Sample(f"{index:04d}", pixels, self.labels_of(index))

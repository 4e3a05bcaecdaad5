"""A source held in memory, for tests of what is built upon sources."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from contextcaps.data import Boxes, Sample, Source


class MemorySource(Source):
    """Samples given as lists: images (pixels, bytes or paths), labels, where wanted boxes, masks, unknown labels."""

    kind = "memory"

    def __init__(
        self,
        images: Sequence[np.ndarray | bytes | Path],
        labels: Sequence[Sequence[int]],
        classes: Sequence[str],
        boxes: Sequence[Boxes | None] | None = None,
        masks: Sequence[np.ndarray | None] | None = None,
        name: str = "memory",
        unknown: Sequence[Sequence[int]] | None = None,
    ) -> None:
        super().__init__(name)
        self.images, self.labels, self.classes = (
            list(images),
            [tuple(sorted(set(row))) for row in labels],
            tuple(classes),
        )
        self.boxes, self.masks = boxes, masks
        self.unknown = [() for _ in images] if unknown is None else [tuple(row) for row in unknown]
        self._settle()

    def __len__(self) -> int:
        return len(self.images)

    def sample(self, index: int) -> Sample:
        return Sample(
            f"{index:05d}",
            self.images[index],
            self.labels[index],
            self.boxes[index] if self.boxes is not None else None,
            self._reader(self.masks[index]) if self.masks is not None else None,
            self.unknown[index],
        )

    @staticmethod
    def _reader(mask: np.ndarray | None) -> Callable[[], np.ndarray] | None:
        return None if mask is None else lambda: mask

    def labels_of(self, index: int) -> tuple[int, ...]:
        return self.labels[index]

    def unknown_of(self, index: int) -> tuple[int, ...]:
        return self.unknown[index]

    def _identity(self) -> Iterator[str]:
        yield repr(self.labels)
        for image in self.images:
            yield str(image) if isinstance(image, Path) else bytes(image).hex()


def blank_source(labels: Sequence[Sequence[int]], classes: int | Sequence[str], name: str = "memory") -> MemorySource:
    """A source whose images are all the same 8 × 8 grey square."""
    names = [f"class {index}" for index in range(classes)] if isinstance(classes, int) else classes
    return MemorySource([np.full((8, 8, 3), 127, np.uint8)] * len(labels), labels, names, name=name)

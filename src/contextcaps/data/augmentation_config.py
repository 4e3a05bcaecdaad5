"""The configuration of augmentation: how strongly training images are changed."""

import dataclasses
import math
from typing import ClassVar

from contextcaps.configuration import Configuration

__all__ = ["AugmentationConfig"]


@dataclasses.dataclass(frozen=True)
class AugmentationConfig(Configuration):
    """Says how strongly training images are changed; an amount of 0 leaves a step out."""

    _title: ClassVar[str] = "the augmentation's configuration"

    crop_scale: tuple[float, float] = (0.4, 1.0)
    """Least and greatest area of the crop, as a share of the image's; (1, 1) for no crop."""
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    """Least and greatest width over height of the crop, relative to the image's own."""
    flip: float = 0.5
    """Probability that an image is mirrored left to right."""
    brightness: float = 0.2
    """Pixels are multiplied by 1 ± up to this."""
    contrast: float = 0.2
    """Distances from the image's mean grey are multiplied by 1 ± up to this."""
    saturation: float = 0.2
    """Distances from each pixel's own grey are multiplied by 1 ± up to this."""
    hue: float = 0.02
    """Colours are turned by ± up to this share of the colour circle; at most 0.5."""
    min_visible: float = 0.25
    """Share of a box or of a class's mask that must be inside the crop for its label to stay; 0 keeps all labels."""

    def __post_init__(self) -> None:
        self._settle_kinds()
        for name, greatest in (("crop_scale", 1.0), ("crop_ratio", math.inf)):
            low, high = getattr(self, name)
            if not 0 < low <= high <= greatest or math.isinf(high):
                limit = "" if math.isinf(greatest) else f" ≤ {greatest:g}"
                raise ValueError(f"{name}: expected 0 < least ≤ greatest{limit}, got ({low}, {high})")
        for name in ("flip", "brightness", "contrast", "saturation", "hue", "min_visible"):
            most = 0.5 if name == "hue" else 1.0
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name}: expected a number from 0 to {most:g}, got {getattr(self, name)}")

"""Hold what tagging gives: the tags of an image, or why there are none."""

import dataclasses
from collections.abc import Mapping

import numpy as np

__all__ = ["Tag", "Tagging"]


@dataclasses.dataclass(frozen=True)
class Tag:
    """A class that an image shows, according to the model."""

    name: str
    score: float
    threshold: float
    """The score from which the class counted as present."""
    given: bool = False
    """Given as a known label rather than predicted."""
    precision: float | None = None
    """Share of the validation pairs of image and class with about this score in which the class was there. None where
    the model has no such count, and where labels were given."""


@dataclasses.dataclass(frozen=True)
class Tagging:
    """A model's result for one image."""

    image: str | int
    """Its path, or its index among the images if it has none."""
    tags: tuple[Tag, ...]
    """Best first."""
    error: str | None = None
    """Why the image could not be tagged."""
    scores: np.ndarray | None = dataclasses.field(default=None, repr=False, compare=False)
    """[J], float32, of all classes; None where there is an error."""
    given: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    """Known labels given to the model: class → whether it is present."""

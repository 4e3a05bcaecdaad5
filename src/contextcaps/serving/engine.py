"""A model as the server uses it. All of the server that knows torch is in this file."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contextcaps.data.decoding import default_workers
from contextcaps.data.images import BadImage, image_size
from contextcaps.models.decomposition import explains
from contextcaps.models.expected_drops import expected_drops
from contextcaps.tagging.explanation import Explanation
from contextcaps.tagging.known import known_row, place_of_class
from contextcaps.tagging.pixels import pixels_of
from contextcaps.tagging.tagger import Tagger, Tagging, load

__all__ = ["Engine", "Features", "Known", "Scores", "share_cores"]

Scores = Tensor
"""[J], float32, on the CPU: the scores of one photograph."""

Known = Mapping[str, bool]
"""Class → whether it is present."""


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """What the backbone has found in one photograph: all that the head and the field need."""

    values: Tensor
    """[C, H, W]."""

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return self.values.numel() * self.values.element_size()


def share_cores(workers: int) -> None:
    """Let this process compute in its share of the cores, where so many processes compute."""
    if workers > 1:
        torch.set_num_threads(max(1, default_workers() // workers))


class Engine:
    """Computes with one model. `pixels` may be called from many threads, all else from two at once.

    Args:
        name: by which clients ask for it.
        tagger: the model.
    """

    def __init__(self, name: str, tagger: Tagger) -> None:
        config = tagger.network.config
        self.name, self.tagger = name, tagger
        self.classes = tagger.classes
        self.takes_known: bool = config.takes_known
        self.explains: bool = explains(config)
        self.description = f"{config.model}, {config.image_size_text}"

    @classmethod
    def load(cls, name: str, place: str, device: str) -> "Engine":
        """Load a model; `place` is as for `contextcaps.load`."""
        return cls(name, load(place, device))

    def pixels(self, content: bytes, max_pixels: int) -> np.ndarray:
        """Decode a file's bytes to what the network takes, [3, H, W], uint8.

        Raises:
            BadImage: it is damaged, or larger than what is wanted.
        """
        height, width = image_size(content)
        if height * width > max_pixels:
            raise BadImage(f"{width} × {height} pixels: this server takes photographs up to {max_pixels:,}")
        return pixels_of(content, self.tagger.network.config.image_size)

    def features(self, pixels: Sequence[np.ndarray]) -> list[Features]:
        """Run the backbone on photographs, [3, H, W] each."""
        with torch.inference_mode():
            found = self.tagger.features(torch.from_numpy(np.stack(pixels)))  # [B, C, H, W]
            return [Features(each.clone()) for each in found]  # none keeps the memory of the whole batch

    def scores(self, features: Sequence[Features], known: Sequence[Known]) -> list[Scores]:
        """Run the head and the field: the scores [J] of each photograph, on the CPU, with what is known of it."""
        network = self.tagger.network
        told = torch.stack([known_row(each, self.classes) for each in known]) if any(known) else None  # [B, J]
        with torch.inference_mode():
            stacked = torch.stack([each.values for each in features])  # [B, C, H, W]
            output = network.from_features(stacked, known=None if told is None else told.to(stacked.device))
            scores = output.scores.float().cpu()  # [B, J]
        return list(scores.clone())

    def check(
        self,
        known: Known,
        classes: Iterable[str] = (),
        threshold: float | Mapping[str, float] | None = None,
        precision_at_least: float | None = None,
        recall_at_least: float | None = None,
    ) -> tuple[float, ...]:
        """Return the thresholds [J] that a request means.

        Raises:
            ValueError: they do not go together, the model has no such class, or can be told nothing.
        """
        if known:
            self.tagger.network.config.require_takes_known()
            known_row(known, self.classes)
        for name in classes:
            place_of_class(name, self.classes, "classes")
        return self.tagger.choose_thresholds(threshold, precision_at_least, recall_at_least)

    def tagging(
        self, name: str | int, scores: Scores, thresholds: tuple[float, ...], top_k: int | None, known: Known
    ) -> Tagging:
        """Return the tags of a photograph of such scores [J]."""
        return self.tagger.tagging_of(name, scores, thresholds, top_k, known)

    def explain(
        self, name: str | int, features: Features, classes: Iterable[str], known: Known, since: Known | None = None
    ) -> Explanation:
        """Explain the tags of a photograph, and what its known labels moved since others were known."""
        return self.tagger.explain_features(name, features.values[None], classes, known, since)

    def question(self, features: Features, known: Known) -> tuple[str, float] | None:
        """Return the class whose answer is expected to settle most others, and how many bits; None where all is known.

        It needs a model that takes known labels.
        """
        labels = known_row(known, self.classes).to(features.values.device)[None]  # [1, J]
        with torch.inference_mode():
            drops, _ = expected_drops(self.tagger.network, features.values[None], labels)  # [1, J]
        best, place = drops[0].nan_to_num(-1.0).max(dim=0)
        return None if len(known) == len(self.classes) else (self.classes[int(place)], float(best))

    def describe(self) -> dict[str, Any]:
        """Return what clients may know of the model, as JSON's types."""
        return {
            "name": self.name,
            "description": self.description,
            "classes": list(self.classes),
            "thresholds": dict(zip(self.classes, map(float, self.tagger.thresholds), strict=True)),
            "takes_known": self.takes_known,
            "asks": self.takes_known,
            "explains": self.explains,
        }

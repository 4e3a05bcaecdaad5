"""Tag images with a trained model.

tagger = contextcaps.load()
for tagging in tagger.tag(["beach.jpg", "street.jpg"]):
    print(tagging.image, [tag.name for tag in tagging.tags])
"""

import contextlib
import dataclasses
import itertools
import numbers
import os
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from contextcaps.data.decoding import default_workers, map_in_order
from contextcaps.data.images import BadImage
from contextcaps.data.problems import DataError
from contextcaps.models.config import ModelConfig
from contextcaps.models.decomposition import decompose, require_explainable
from contextcaps.models.loading import DEFAULT_MODEL, load_model
from contextcaps.models.network import CapsuleNetwork
from contextcaps.models.score_bands import ScoreBands
from contextcaps.models.trained import Trained
from contextcaps.out_of_memory import memory_for
from contextcaps.tagging.explanation import Explanation, explanation_of
from contextcaps.tagging.known import known_row, place_of_class
from contextcaps.tagging.pixels import as_images, name_of, pixels_of
from contextcaps.tagging.thresholds import Asked, choose_thresholds

__all__ = ["OnBadImage", "Tag", "Tagger", "Tagging", "load"]

OnBadImage = Literal["report", "stop"]

_UNTUNED = 0.5  # threshold of a model without tuned ones
_LUMA = (0.299, 0.587, 0.114)  # red, green and blue in grey (ITU-R 601, as in Pillow)


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
    scores: Tensor | None = dataclasses.field(default=None, repr=False, compare=False)
    """[J], float32, of all classes, on the CPU; None where there is an error."""
    given: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    """Known labels given to the model: class → whether it is present."""


def _compute_alone() -> None:
    """Let a forked process compute in one thread: OpenMP would wait for ever for threads that are its parent's."""
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compute_alone)


class Tagger:
    """Tags images with a network, its class names and its thresholds.

    Args:
        network: put into evaluation mode; a copy of its backbone computes. The copy is made anew where the weights have
            gone to another device or precision, as by `tagger.network.bfloat16()`; no other change to it is seen.
        trained: the training's results, such as tuned thresholds; without them each class is present from 0.5 on.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".

    A process forked from one that has loaded a model on the CPU can use it, in one thread.
    """

    def __init__(
        self, network: CapsuleNetwork, trained: Trained | None = None, device: str | torch.device = "auto"
    ) -> None:
        config = network.config
        if config.in_channels not in (1, 3):
            raise ValueError(f"a network for images of {config.in_channels} channels: only colour and grey are tagged")
        self.network = network.to(_checked_device(device)).eval()
        self._folded = self.network.folded()  # gives the same scores in less time
        self.trained = trained
        self.classes: tuple[str, ...] = config.class_names or tuple(str(index) for index in range(config.num_classes))
        self.thresholds: tuple[float, ...] = (_UNTUNED,) * len(self.classes) if trained is None else trained.thresholds
        self.score_bands = ScoreBands() if trained is None else trained.score_bands

    @property
    def device(self) -> torch.device:
        """The device that computes: that of the network's weights."""
        return self.network.pixel_mean.device

    @property
    def config(self) -> ModelConfig:
        """The network's configuration."""
        return self.network.config

    def __repr__(self) -> str:
        return f"Tagger({self.network.config.model}, {len(self.classes)} classes, on {self.device})"

    def tag(
        self,
        images: Any,
        *,
        threshold: float | Mapping[str, float] | None = None,
        precision_at_least: float | None = None,
        recall_at_least: float | None = None,
        top_k: int | None = None,
        batch_size: int = 64,
        workers: int | None = None,
        on_bad: OnBadImage = "report",
        known: Mapping[str, bool] | None = None,
    ) -> list[Tagging]:
        """Tag one image or several; return a result for each, in their order.

        Args:
            images: one or many of: a path, an encoded file's bytes, an open file, a PIL image, pixels [H, W, 3] as a
                numpy array of uint8, a tensor [3, H, W] of uint8 or of values 0…1. Each is squashed to the network's
                size.
            threshold: the score from which any class counts as present, instead of each class's own; or such a score
                for some classes, {"oven": 0.7}, where all others keep their own.
            precision_at_least: one threshold for all classes instead, the lowest with which this share of the tags of
                the validation images was right, such as 0.8.
            recall_at_least: one threshold for all classes instead, the highest with which this share of the labels of
                the validation images was found.
            top_k: at most so many tags for each image; with `threshold=0` exactly so many.
            batch_size: images to compute at once.
            workers: images to decode at once; as many as there are cores by default.
            on_bad: "report" an image that cannot be read in its own result, or "stop" with a `DataError`.
            known: known labels of all these images, such as {"oven": True, "bed": False}: class → is it present.
                They become tags, and the model uses them for the other classes. Needs a network with a decision field,
                or the head of c-tran.

        Raises:
            TypeError: something that is no image, or an argument of the wrong type.
            ValueError: pixels in another layout or range, or an argument out of its range.
        """
        taggings = self.tag_stream(
            images,
            threshold=threshold,
            precision_at_least=precision_at_least,
            recall_at_least=recall_at_least,
            top_k=top_k,
            batch_size=batch_size,
            workers=workers,
            on_bad=on_bad,
            known=known,
        )
        return list(taggings)

    def tag_stream(
        self,
        images: Any,
        *,
        threshold: float | Mapping[str, float] | None = None,
        precision_at_least: float | None = None,
        recall_at_least: float | None = None,
        top_k: int | None = None,
        batch_size: int = 64,
        workers: int | None = None,
        on_bad: OnBadImage = "report",
        known: Mapping[str, bool] | None = None,
    ) -> Generator[Tagging, None, None]:
        """Yield the results of `tag` one by one: for any number of images, of which two batches are in memory."""
        for name, value in (("top_k", top_k), ("batch_size", batch_size), ("workers", workers)):
            if value is not None:
                _require_count(name, value)
        if on_bad not in ("report", "stop"):
            raise ValueError(f"on_bad: expected 'report' or 'stop', got {on_bad!r}")
        thresholds = self.choose_thresholds(threshold, precision_at_least, recall_at_least)
        row = self._known_row(known)
        known = dict(known or {})
        decoded = self._decoded(as_images(images), batch_size, workers or default_workers())

        def stream() -> Generator[Tagging, None, None]:  # so that wrong arguments are refused at the call
            with contextlib.closing(decoded):
                while batch := list(itertools.islice(decoded, batch_size)):
                    readable = [pixels for _, pixels in batch if isinstance(pixels, np.ndarray)]
                    scores = iter(self.scores(torch.from_numpy(np.stack(readable)), row) if readable else ())  # [J]
                    for name, pixels in batch:
                        if isinstance(pixels, np.ndarray):
                            tagging = self._tagging(name, next(scores), thresholds, top_k, known)
                        else:
                            tagging = Tagging(name, (), error=pixels)
                        if tagging.error is not None and on_bad == "stop":
                            where = name if isinstance(name, str) else f"image {name}"
                            raise DataError(f"{where}: {tagging.error}")
                        yield tagging

        return stream()

    def choose_thresholds(
        self,
        threshold: float | Mapping[str, float] | None = None,
        precision_at_least: float | None = None,
        recall_at_least: float | None = None,
    ) -> tuple[float, ...]:
        """Return the threshold of each class [J], as `tag` uses them for these arguments; at most one may be given."""
        asked = Asked(threshold, precision_at_least, recall_at_least)
        return choose_thresholds(asked, self.classes, self.thresholds, self.score_bands)

    def _decoded(
        self, images: Iterable[Any], batch_size: int, workers: int
    ) -> Generator[tuple[str | int, np.ndarray | str], None, None]:
        """Yield each image's name with its pixels [3, H, W], or why there are none; decode the next batch meanwhile."""
        size = self.network.config.image_size

        def decoded(task: tuple[int, Any]) -> tuple[str | int, np.ndarray | str]:
            index, image = task
            name = name_of(image, index)
            try:
                return name, pixels_of(image, size)
            except (BadImage, MemoryError) as error:
                return name, str(error) or "there is not enough memory to read it"

        pool = ThreadPoolExecutor(workers, "decode")
        try:
            yield from map_in_order(pool, decoded, enumerate(images), max(batch_size, 2 * workers))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _known_row(self, known: Mapping[str, bool] | None) -> Tensor | None:
        """Check known labels and return them as the network takes them, [J]; None for none."""
        if not isinstance(known, Mapping | None):
            raise TypeError(f"known: expected class → True or False, such as {{'oven': True}}, got {known!r}")
        if not known:
            return None
        self.network.config.require_takes_known()
        return known_row(known, self.classes)

    def scores(self, images: Tensor, known: Tensor | None = None) -> Tensor:
        """Return scores [B, J], float32 on the CPU, of images [B, 3, H, W] as bytes at the network's size.

        `known` are the known labels of each of them, [J]: 1 for present, 0 for absent, NaN for not known.
        """
        images = self._ready(images)
        with torch.inference_mode(), memory_for(len(images), self.device):
            told = None if known is None else known.to(self.device).expand(len(images), -1)  # [B, J]
            scores = self._folded(images, known=told).scores.float().cpu()  # [B, J]
        return scores.clone()  # outside inference mode, so that callers may modify them

    def features(self, images: Tensor) -> Tensor:
        """Return the backbone's features [B, C', H', W'], on its device, of images [B, 3, H, W] as for `scores`."""
        return self._folded.features(self._ready(images))

    def _ready(self, images: Tensor) -> Tensor:
        """Return images [B, 3, H, W] as the network takes them, with a folded network on the same device."""
        if _place(self._folded) != _place(self.network):
            self._folded = self.network.folded()
        images = images.to(self.device)
        if self.network.config.in_channels == 1:
            luma = torch.tensor(_LUMA, device=self.device)[:, None, None]  # [3, 1, 1]
            images = (images * luma).sum(1, keepdim=True) / 255  # [B, 1, H, W]
        return images

    def explain(
        self, image: Any, classes: Iterable[str] | None = None, known: Mapping[str, bool] | None = None
    ) -> Explanation:
        """Say why: divide the logit of each tag of one image exactly into what the image and the other classes say.

        It takes little more time than tagging the image.

        Args:
            image: as for `tag`.
            classes: explain these besides the tags, also where they are absent.
            known: as for `tag`; the result also has the scores that they moved, and through which classes.

        Raises:
            DataError: the image cannot be read.
            TypeError: something that is no image, or an argument of the wrong type.
            ValueError: the model's scores have no exact parts (EM routing, transformers), or it has no such class.
        """
        require_explainable(self.network.config)
        if isinstance(classes, str) or not isinstance(classes, Iterable | None):
            raise TypeError(f"classes: expected names of classes, such as ['oven'], got {classes!r}")
        asked = list(dict.fromkeys(classes or ()))
        for each in asked:
            place_of_class(each, self.classes, "classes")
        row = self._known_row(known)  # [J]
        name = name_of(image, 0)
        try:
            pixels = pixels_of(image, self.network.config.image_size)
        except BadImage as error:
            raise DataError(f"{name if isinstance(name, str) else 'the image'}: {error}") from None
        with torch.inference_mode():
            features = self.features(torch.from_numpy(pixels[None]))  # [1, C, H, W]
            told = () if row is None else (row.to(self.device)[None],)  # [1, J]
            *before, found = decompose(self.network, features, None, *told)
        if not bool(found.logits.isfinite().all()):
            raise ValueError("the model gives scores that are no numbers: are its weights damaged?")
        plain = before[0] if before else None
        return explanation_of(name, found, plain, self.classes, self.thresholds, asked, known or {})

    def _tagging(
        self,
        name: str | int,
        scores: Tensor,
        thresholds: tuple[float, ...],
        top_k: int | None,
        known: Mapping[str, bool],
    ) -> Tagging:
        if not bool(scores.isfinite().all()):
            return Tagging(name, (), error="the model gives scores that are no numbers: are its weights damaged?")
        order = scores.argsort(descending=True, stable=True)  # [J], equal scores in the classes' order
        above = scores >= torch.tensor(thresholds, dtype=scores.dtype)  # [J]
        for given, is_present in known.items():
            above[self.classes.index(given)] = is_present  # also with a threshold of 0
        present = order[above[order]][:top_k].tolist()
        tags = []
        for j in present:
            score = float(scores[j])
            precision = None if known else self.score_bands.precision(score)  # it was counted without known labels
            tags.append(Tag(self.classes[j], score, thresholds[j], self.classes[j] in known, precision))
        return Tagging(name, tuple(tags), scores=scores, given=known)


def load(path: str | Path = DEFAULT_MODEL, device: str | torch.device = "auto") -> Tagger:
    """Load a trained model for tagging; without a name the default of those that are shipped.

    Args:
        path: the name of a shipped model (`contextcaps models` lists them), a run's folder, a model's as
            `save_pretrained` writes it, or `hf:OWNER/NAME` on the Hugging Face Hub. A folder that is called as a
            shipped model is reached as "./NAME".
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".

    Raises:
        ModelFileError: there is no model, or it cannot be read.
        ValueError: there is no such device.
    """
    chosen = _checked_device(device)  # before the work, not after it
    return Tagger(*load_model(path, chosen), chosen)


def _require_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}: expected a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name}: expected at least 1, got {value}")


def _place(network: CapsuleNetwork) -> tuple[torch.device, torch.dtype] | None:
    """Return the device and the type of a backbone's weights; None where it has none."""
    return next(((weight.device, weight.dtype) for weight in network.backbone.parameters()), None)


def _checked_device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        chosen = torch.device("meta")
    if chosen.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f"device: expected auto, cpu, cuda or cuda:NUMBER, got {str(device)!r}")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if chosen.type == "cuda" and (chosen.index or 0) >= found:
        raise ValueError(f"device: {chosen} is not there (GPUs that torch can use: {found}); use cpu or auto")
    return chosen

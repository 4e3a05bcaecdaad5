"""Tag images with a trained model.

tagger = contextcaps.load()
for tagging in tagger.tag(["beach.jpg", "street.jpg"]):
    print(tagging.image, [tag.name for tag in tagging.tags])
"""

import contextlib
import itertools
import numbers
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from contextcaps.data.decoding import default_workers, map_in_order
from contextcaps.data.images import BadImage
from contextcaps.data.problems import DataError
from contextcaps.models.parts import LogitParts
from contextcaps.models.score_bands import ScoreBands
from contextcaps.models.scorer import Scorer
from contextcaps.models.trained import Trained
from contextcaps.tagging.explanation import Explanation, explanation_of
from contextcaps.tagging.known import known_row, place_of_class
from contextcaps.tagging.loaded_model import LoadedModel
from contextcaps.tagging.pixels import as_images, name_of, pixels_of
from contextcaps.tagging.tags import Tag, Tagging
from contextcaps.tagging.thresholds import Asked, choose_thresholds

if TYPE_CHECKING:
    from contextcaps.models.network import CapsuleNetwork

__all__ = ["OnBadImage", "Tagger"]

OnBadImage = Literal["report", "stop"]

_UNTUNED = 0.5  # threshold of a model without tuned ones


class Tagger(LoadedModel):
    """Tags images with a network, its class names and its thresholds.

    Args:
        network: a torch network, which is put into evaluation mode and changed no more but for its device and
            precision; or what computes its scores, as `contextcaps.models.runtime.open_scorer` gives it.
        trained: the training's results, such as tuned thresholds; without them each class is present from 0.5 on.
        device: of a torch network: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".
        source: the model's name or folder, from which its torch network is loaded where ONNX Runtime computes; None
            where there is none.

    A process forked from one that has loaded a model on the CPU can use it, in one thread.
    """

    def __init__(
        self,
        network: "CapsuleNetwork | Scorer",
        trained: Trained | None = None,
        device: Any = "auto",
        *,
        source: str | Path | None = None,
    ) -> None:
        super().__init__(network, device, source)
        if self.config.in_channels not in (1, 3):
            raise ValueError(
                f"a network for images of {self.config.in_channels} channels: only colour and grey are tagged"
            )
        self.trained = trained
        self.classes: tuple[str, ...] = self.config.all_class_names
        self.thresholds: tuple[float, ...] = (_UNTUNED,) * len(self.classes) if trained is None else trained.thresholds
        self.score_bands = ScoreBands() if trained is None else trained.score_bands

    def __repr__(self) -> str:
        return f"Tagger({self.config.model}, {len(self.classes)} classes, on {self.device})"

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
                    scores = iter(self.scores(np.stack(readable), row) if readable else ())  # [J]
                    for name, pixels in batch:
                        if isinstance(pixels, np.ndarray):
                            tagging = self.tagging_of(name, next(scores), thresholds, top_k, known)
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
        size = self.config.image_size

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

    def _known_row(self, known: Mapping[str, bool] | None) -> np.ndarray | None:
        """Check known labels and return them as the network takes them, [J]; None for none."""
        if not isinstance(known, Mapping | None):
            raise TypeError(f"known: expected class → True or False, such as {{'oven': True}}, got {known!r}")
        if not known:
            return None
        self.config.require_takes_known()
        return known_row(known, self.classes)

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
        self.scorer.require_explainable()
        if isinstance(classes, str) or not isinstance(classes, Iterable | None):
            raise TypeError(f"classes: expected names of classes, such as ['oven'], got {classes!r}")
        asked = self._asked(classes or ())
        row = self._known_row(known)  # [J]
        name = name_of(image, 0)
        try:
            pixels = pixels_of(image, self.config.image_size)
        except BadImage as error:
            raise DataError(f"{name if isinstance(name, str) else 'the image'}: {error}") from None
        parts = self.scorer.parts(pixels, None, *(() if row is None else (row,)))
        return self.explanation(name, parts, asked, known)

    def explanation(
        self,
        name: str | int,
        parts: Sequence[LogitParts],
        classes: Iterable[str] = (),
        known: Mapping[str, bool] | None = None,
    ) -> Explanation:
        """Return what `explain` does, from the parts of an image's logits.

        `parts` are those with what was known before, where moves since then are wanted, and those with `known`.
        """
        asked = self._asked(classes)
        *before, found = parts
        if not bool(np.isfinite(found.logits).all()):
            raise ValueError("the model gives scores that are no numbers: are its weights damaged?")
        plain = before[0] if before else None
        return explanation_of(name, found, plain, self.classes, self.thresholds, asked, known or {})

    def _asked(self, classes: Iterable[str]) -> list[str]:
        """Check that there are such classes to explain, and return each once."""
        asked = list(dict.fromkeys(classes))
        for each in asked:
            place_of_class(each, self.classes, "classes")
        return asked

    def tagging_of(
        self,
        name: str | int,
        scores: np.ndarray,
        thresholds: tuple[float, ...],
        top_k: int | None,
        known: Mapping[str, bool],
    ) -> Tagging:
        """Return the result for an image of such scores [J]; `thresholds` [J] are those of `choose_thresholds`."""
        if not bool(np.isfinite(scores).all()):
            return Tagging(name, (), error="the model gives scores that are no numbers: are its weights damaged?")
        order = np.argsort(-scores, kind="stable")  # [J], equal scores in the classes' order
        above = scores >= np.array(thresholds, dtype=scores.dtype)  # [J]
        for given, is_present in known.items():
            above[self.classes.index(given)] = is_present  # also with a threshold of 0
        present = order[above[order]][:top_k].tolist()
        tags = []
        for j in present:
            score = float(scores[j])
            precision = None if known else self.score_bands.precision(score)  # it was counted without known labels
            tags.append(Tag(self.classes[j], score, thresholds[j], self.classes[j] in known, precision))
        return Tagging(name, tuple(tags), scores=scores, given=known)


def _require_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}: expected a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name}: expected at least 1, got {value}")

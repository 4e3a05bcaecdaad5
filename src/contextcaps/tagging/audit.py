"""Labels that are probably wrong or missing: each is judged by the image and by all of the image's other labels.

The model says how probable the class is twice: of the image alone, and told every other label of the image, present and
absent alike. The logit is a mixture of both. A label whose opposite is more probable is suspected: "present" below one
half may be wrong, "absent" above it missing.

A model's own calibration is that of scores where nothing is told. With everything told it is surer than it should be:
the messages of all classes add up, those of labels in error, too. And a label can be in error, which is more common of
one kind than of the other: annotators overlook many more objects than they invent. So some numbers are fitted to the
labels that are judged: the mixture, a scale and a shift of its logits, a shift of each class, and the shares of labels
that are missing and wrong (`fit_label_noise`). The shares say how the two kinds are ranked together.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contextcaps.data import Sample, Source
from contextcaps.data.loading import StreamLoader
from contextcaps.data.problems import DataError, OnBad, Problem
from contextcaps.data.source import Subset
from contextcaps.data.unknown import UNKNOWN, is_unknown, labels_or_nan
from contextcaps.evaluation.metrics import LabelNoise, fit_label_noise
from contextcaps.evaluation.scoring import class_order
from contextcaps.models.decomposition import explains
from contextcaps.models.leave_one_out import leave_one_out
from contextcaps.out_of_memory import memory_for
from contextcaps.tagging.explanation import ClassExplanation, mixed_explanation
from contextcaps.tagging.known import known_row
from contextcaps.tagging.pixels import pixels_of
from contextcaps.tagging.reasons import describe_reasons
from contextcaps.tagging.tagger import Tagger

__all__ = ["Audit", "Judge", "Kind", "Suspicion", "audit_labels", "judging_scores", "require_labels"]

Kind = Literal["wrong", "missing"]
"""What may be the matter with a label: the class is not there, or the label is not."""
_EPS = 1e-7
"""Scores are kept so far from 0 and 1 when they are calibrated, at logits of ±16."""


class Judge(NamedTuple):
    """A model, and the images whose labels it judges."""

    tagger: Tagger
    images: np.ndarray
    """[m], int64, indices of the images in the source."""


@dataclasses.dataclass(frozen=True, eq=False)
class Suspicion:
    """A label that is probably wrong or missing."""

    index: int
    """Index of the image in the source."""
    image: str
    """The sample's id."""
    name: str
    """The class."""
    is_present: bool
    """What the label says."""
    probability: float
    """That the label is right, given how often labels of its kind are in error."""
    reason: str
    """Why the class has its score, in words."""
    labels: tuple[str, ...]
    """All classes that the image's labels say are present."""
    explanation: ClassExplanation | None = None
    """The parts of the class's score; None for a model whose scores have no exact parts."""

    @property
    def suggestion(self) -> Literal["remove", "add"]:
        """What to do about the label, if it is wrong."""
        return "remove" if self.is_present else "add"


@dataclasses.dataclass(frozen=True, eq=False)
class Audit:
    """The labels of a source, and which of them are probably wrong or missing."""

    source: Source
    probabilities: Tensor
    """[n, J], float32, of each label to be right; NaN for an unknown label, and for an image that cannot be read."""
    suspicions: tuple[Suspicion, ...]
    """The most improbable labels first."""
    suspected: int
    """How many labels have an opposite that the model calls more probable; `suspicions` are some of them."""
    noise: LabelNoise
    """How often labels are in error, as fitted to them."""
    told: bool
    """Whether the models were told the other labels; False for models that cannot be told."""
    problems: tuple[Problem, ...] = ()
    """Images that could not be read."""
    by: str = ""
    """Who judged, in a sentence."""

    @property
    def judged(self) -> int:
        """How many labels were judged."""
        return int((~self.probabilities.isnan()).sum())


def audit_labels(
    source: Source,
    judges: Sequence[Judge],
    *,
    top: int = 100,
    only: Kind | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    on_bad: OnBad | None = None,
    tell: Callable[[int], None] = lambda count: None,
) -> Audit:
    """Judge the labels of a source, and say why the most improbable ones are so.

    Args:
        source: images with labels.
        judges: models with the images that each judges; together all images, or some of them.
        top: explain and list so many labels at most.
        only: list labels that are probably "wrong" (present), or "missing", alone; None lists both.
        batch_size: images to compute at once.
        workers: images to decode at once.
        on_bad: stop at images that cannot be read, or skip them; by default as the source was opened.
        tell: called with the number of images done since its last call.

    Raises:
        DataError: the source has no label, or other classes than a model.
    """
    require_labels(source)
    told = all(judge.tagger.config.takes_known for judge in judges)
    logits = torch.full((len(source), 2 if told else 1, len(source.classes)), math.nan)  # [n, S, J]
    tagger_of: dict[int, Tagger] = {}
    problems: list[Problem] = []
    for tagger, images in judges:
        part = Subset(source, images.tolist(), "part")
        part.name = source.name
        scores, bad = judging_scores(tagger, part, batch_size, workers, on_bad, tell)  # [m, 2, J]
        scores = scores[:, : logits.shape[1]]  # [m, S, J]
        logits[torch.from_numpy(np.asarray(images))] = torch.logit(scores, eps=_EPS)
        tagger_of |= dict.fromkeys(map(int, images), tagger)
        problems += bad
    targets = torch.from_numpy(source.targets())  # [n, J]
    alone, told_logits = logits[:, 0], logits[:, 1] if told else None  # [n, J]
    targets = targets.masked_fill(alone.isnan(), UNKNOWN)  # [n, J], also where no image was read
    noise = fit_label_noise(
        alone.nan_to_num(0.0), targets, None if told_logits is None else told_logits.nan_to_num(0.0)
    )
    calibrated = noise.calibrated(alone, told_logits)  # [n, J]
    probabilities = noise.right(calibrated, targets == 1).masked_fill(is_unknown(targets), math.nan)  # [n, J]
    wrong = (targets == 1) & (calibrated < 0)  # [n, J]
    missing = (targets == 0) & (calibrated > 0)  # [n, J]
    suspected = (wrong if only == "wrong" else missing if only == "missing" else wrong | missing).nonzero()  # [m, 2]
    order = probabilities[tuple(suspected.T)].argsort(stable=True)[:top]
    suspicions = tuple(
        _suspicion(
            source,
            tagger_of[index],
            noise,
            index,
            place,
            float(calibrated[index, place]),
            float(probabilities[index, place]),
        )
        for index, place in suspected[order].tolist()
    )
    return Audit(source, probabilities, suspicions, int((wrong | missing).sum()), noise, told, tuple(problems))


def require_labels(source: Source) -> None:
    """Refuse a source in which no image shows any class."""
    if not any(source.labels_of(index) for index in range(len(source))):
        raise DataError(
            f"{source.name}: no image has a label; an audit judges labels that are there, and contextcaps tag makes "
            "new ones"
        )


def judging_scores(
    tagger: Tagger,
    source: Source,
    batch_size: int = 64,
    workers: int | None = None,
    on_bad: OnBad | None = None,
    tell: Callable[[int], None] = lambda count: None,
) -> tuple[Tensor, list[Problem]]:
    """Return the scores of each class with nothing told and with all other labels told, and what was unreadable.

    The scores [n, 2, J] are as the model gives them, classes in the source's order, and NaN for images that cannot be
    read. A model that cannot be told gives the same twice. Arguments are as for `audit_labels`.
    """
    order = class_order(tagger.network, source)  # [J], of each of the model's classes among the source's
    found = torch.full((len(source), 2, len(order)), math.nan)  # [n, 2, J]
    loader = StreamLoader(source, tagger.config.image_size, batch_size, workers=workers, on_bad=on_bad)
    for batch in loader:
        labels = labels_or_nan(batch.targets)[:, order]  # [B, J], classes as the model has them
        with torch.inference_mode(), memory_for(len(batch), tagger.device):
            features = tagger.features(batch.images)  # [B, C, H, W]
            scores = torch.stack(leave_one_out(tagger.network, features, labels.to(features.device)), dim=1)
            scores = scores.float().cpu()  # [B, 2, J]
        if not bool(scores.isfinite().all()):
            raise ValueError("the model gives scores that are no numbers: are its weights damaged?")
        found[torch.from_numpy(batch.indices)[:, None], :, torch.tensor(order)] = scores.transpose(1, 2)
        tell(len(batch))
    return found, loader.problems.found


def _suspicion(
    source: Source, tagger: Tagger, noise: LabelNoise, index: int, place: int, logit: float, probability: float
) -> Suspicion:
    """Explain a label: why is its class so probable, or so improbable?"""
    sample, name = source.sample(index), source.classes[place]
    is_present = place in sample.labels
    explanation = None
    if explains(tagger.config):
        explanation = dataclasses.replace(_explained(source, tagger, noise, sample, place), name=name)
        reason = describe_reasons(explanation)
    else:
        score = float(torch.sigmoid(torch.tensor(logit)))
        reason = f"{name} {score:.2f}: the scores of this kind of model have no parts that could be named"
    labels = tuple(source.classes[label] for label in sample.labels)
    return Suspicion(index, sample.id, name, is_present, probability, reason, labels, explanation)


def _explained(source: Source, tagger: Tagger, noise: LabelNoise, sample: Sample, place: int) -> ClassExplanation:
    """Return the parts of the logit that a label is judged by."""
    names = _names(tagger, source)
    if not tagger.config.takes_known:
        found = tagger.explain(sample.image, [names[place]])
        return next(each for each in found.classes if each.name == names[place])
    open_ = {place, *sample.unknown}
    known = {each: k in sample.labels for k, each in enumerate(names) if k not in open_}
    row = known_row(known, tagger.classes)  # [J]
    both = tagger.scorer.parts(pixels_of(sample.image, tagger.config.image_size), None, row)
    alone, told = (
        next(
            each for each in tagger.explanation(0, [parts], [names[place]], given).classes if each.name == names[place]
        )
        for parts, given in zip(both, (None, known), strict=True)
    )
    shift = noise.shift + noise.class_shifts[place]
    return mixed_explanation((alone, noise.scale * (1 - noise.told)), (told, noise.scale * noise.told), shift=shift)


def _names(tagger: Tagger, source: Source) -> tuple[str, ...]:
    """Return what the model calls the source's classes, in the source's order; numbers, if it has no names."""
    return source.classes if tagger.config.class_names is not None else tagger.classes

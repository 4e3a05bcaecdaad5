"""The data of a training run: its parts, opened and prepared, and a loader for each."""

import dataclasses
from typing import Any

import numpy as np
import torch

from contextcaps.data import Prepared, PreparedLoader, Source, StreamLoader, open_splits, prepare
from contextcaps.data.loading import Loader
from contextcaps.data.problems import DataError, Problem, require_utf8
from contextcaps.data.scarcity import HiddenLabels, keep_images
from contextcaps.data.source import absent_classes, have_same_data
from contextcaps.data.source_registry import missing_place
from contextcaps.data.splits import open_part
from contextcaps.data.unknown import class_frequencies
from contextcaps.models import CapsuleNetwork
from contextcaps.training.config import TrainConfig
from contextcaps.training.features import FeatureLoader, Features, compute_features
from contextcaps.training.memory import forget_peak
from contextcaps.training.processes import Fabric, agree, resolved_precision

__all__ = [
    "Part",
    "check_validation",
    "fit_batch_size",
    "keep_features",
    "open_parts",
    "open_training_parts",
    "require_places",
]

_FEWEST_IMAGES = 10
"""Fewer training images than this are not trained on, unless a batch size is asked for that they fill."""
_FEWEST_STEPS = 4
"""Batches of an epoch, where the batch size is chosen by the number of images."""


@dataclasses.dataclass
class Part:
    """One part of the data, such as the training part."""

    source: Source
    size: int | tuple[int, int]
    """Side, or height and width, of the images in pixels."""
    prepared: Prepared | None = None
    """The prepared copy, once `prepare` has been called."""
    features: Features | None = None
    """A frozen backbone's features of the images; loaders then give these instead of them."""
    hidden: HiddenLabels | None = None
    """Labels of the source that are not to be learned from. Prepared copies and features have them all the same, so
    that trainings on more and on fewer labels share these."""

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.classes

    def __len__(self) -> int:
        return len(self.source) if self.prepared is None else len(self.prepared)

    def prepare(self, config: TrainConfig, progress: bool = True) -> None:
        """Make or open the prepared copy, unless images are to be decoded as they are needed."""
        if config.prepare:
            self.prepared = prepare(
                self.source, self.size, config.cache, config.on_bad, config.workers, progress=progress
            )

    @property
    def problems(self) -> list[Problem]:
        """Return what was left out of it."""
        found = [*self.source.problems.found, *([] if self.prepared is None else self.prepared.problems)]
        return list(dict.fromkeys(found))

    def targets(self) -> np.ndarray:
        """Return the labels [n, J], uint8, with `UNKNOWN` for an unknown one."""
        targets = self.source.targets() if self.prepared is None else self.prepared.targets
        if self.hidden is None:
            return targets
        source = self.source
        ids = [source.id_of(index) for index in range(len(source))] if self.prepared is None else self.prepared.ids
        return self.hidden.hide(targets, ids)

    def frequencies(self) -> np.ndarray:
        """Return the share of images that show each class, among those where it is known, [J] float64."""
        return class_frequencies(self.targets())

    def loader(self, config: TrainConfig, **settings: Any) -> Loader:
        """Return batches of the images or their features; `settings` are those of `Loader`, and `batch_size`."""
        pin_memory = config.accelerator != "cpu" and torch.cuda.is_available()
        settings = {"batch_size": config.batch_size, "pin_memory": pin_memory, **settings}
        if self.hidden is not None:
            settings["relabel"] = self.hidden.hide
        if self.features is not None:
            return FeatureLoader(self.features, **settings)
        if self.prepared is not None:
            return PreparedLoader(self.prepared, **settings)
        return StreamLoader(self.source, self.size, workers=config.workers, on_bad=config.on_bad, **settings)


def open_parts(config: TrainConfig) -> dict[str, Part]:
    """Open all parts of a run's data, divided as the run divided them: train, val and, where there is one, test.

    The training part has those of its images and labels that are kept; the others have all of theirs.
    """
    sources = _open_sources(config)
    parts = {name: Part(source, config.side) for name, source in sources.items()}
    train = parts["train"]
    if config.keep_images != 1:
        train.source = keep_images(train.source, config.keep_images, config.keep_seed)
    if config.keep_labels != 1:
        train.hidden = HiddenLabels(train.classes, config.keep_labels, config.hidden_labels, config.keep_seed)
    return parts


def _open_sources(config: TrainConfig) -> dict[str, Source]:
    """Open the sources of all parts, whole."""
    if config.val_data is None:
        seed = config.seed if config.split_seed is None else config.split_seed
        return open_splits(config.data, on_bad=config.on_bad, seed=seed, val_as_test=config.val_as_test)
    train = open_part(config.data, ("train",), on_bad=config.on_bad)
    validation = open_part(config.val_data, ("val", "test"), on_bad=config.on_bad)
    if have_same_data(validation, train):
        raise DataError(f"{config.val_data}: expected other images to validate on than those to train on")
    if validation.classes != train.classes:
        raise DataError(
            f"{config.val_data}: expected the classes of {config.data} in the same order, got "
            f"{len(validation.classes)} classes instead of {len(train.classes)} (or in another order); "
            "give both the same list of classes as an option"
        )
    return {"train": train, "val": validation}


def require_places(config: TrainConfig, how: str) -> None:
    """Refuse data that are no longer where a run or a model says; `how` is the command that takes the new place."""
    for source in filter(None, (config.data, config.val_data)):
        place = missing_place(source)
        if place is not None:
            kind = source.partition(":")[0]
            raise DataError(
                f"{place}: not there, where the training data were ({source}); if they have moved, say where they are "
                f"now: {how} {kind}:PLACE"
            )


def open_training_parts(config: TrainConfig) -> tuple[Part, Part]:
    """Open the training and the validation part; refuse classes that a model's files cannot name."""
    parts = open_parts(config)
    for name in parts["train"].classes:
        require_utf8(f"{config.data}: class", name)
    return parts["train"], parts["val"]


def fit_batch_size(config: TrainConfig, images: int) -> TrainConfig:
    """Return a configuration whose batch size each process can fill: a smaller one where there are too few images.

    Args:
        config: of the run.
        images: of the training part.

    Raises:
        DataError: there are hardly any.
    """
    processes = config.devices * config.nodes
    if images // processes >= config.batch_size:
        return config
    each = "" if processes == 1 else f" for {processes} processes"
    if images < max(_FEWEST_IMAGES, processes):
        raise DataError(
            f"{config.data}: expected at least {max(_FEWEST_IMAGES, processes)} training images{each}, got {images}; "
            f"{'label more' if config.keep_images == 1 else 'keep more of them with --keep-images'}"
        )
    return dataclasses.replace(config, batch_size=max(1, images // (processes * _FEWEST_STEPS)))


def check_validation(training: Source, validating: Source) -> list[str]:
    """Return a note on the classes that are trained on and cannot be validated, for want of a positive.

    Raises:
        DataError: that is so for all classes, and no epoch could be told from another.
    """
    trained, validated = ((source.targets() == 1).any(axis=0) for source in (training, validating))  # [J]
    if not validated.any():
        raise DataError(
            f"{validating.name}: none of its images ({len(validating)}) shows any class; label more, or name images to "
            "validate on with --val-data"
        )
    return absent_classes(training.classes, trained & ~validated, " in the validation part")


def keep_features(
    fabric: Fabric, network: CapsuleNetwork, parts: tuple[Part, Part], config: TrainConfig, progress: bool
) -> None:
    """Freeze the backbone, and let both parts hand out its features instead of images."""
    network.to(fabric.device).freeze_backbone()

    def keep() -> None:
        for part, augmented in zip(parts, (True, False), strict=True):
            assert part.prepared is not None
            shown, precision = progress and fabric.is_global_zero, resolved_precision(config)
            part.features = compute_features(network, part.prepared, config, precision, augmented, shown)

    failure: DataError | None = None
    if fabric.local_rank == 0:  # one process of each machine computes them
        try:
            keep()
        except DataError as error:
            failure = error
    if agree(fabric, failure is not None)[0]:  # all processes end, not only the one that computes
        raise failure or DataError("another process could not keep the features")
    if fabric.local_rank != 0:
        keep()  # finds them
    forget_peak()  # the features are computed once, whoever comes first

"""Features of a frozen backbone, computed once and kept: training the head alone then costs no convolutions.

The features are a folder of the cache, named by everything that they depend on: the images, the augmentation, and the
backbone with its weights. Of each training image there are several views, augmented differently; an epoch takes one of
them. So every seed and every head on the same backbone shares one copy.
"""

import dataclasses
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contextcaps.data.augmentation import Augmentation
from contextcaps.data.cache import cache_folder, open_or_fill, require_whole
from contextcaps.data.loading import FeatureBatch, GatheringLoader, PreparedLoader
from contextcaps.data.prepared import Prepared
from contextcaps.data.problems import DataError
from contextcaps.data.progress import progress_of
from contextcaps.evaluation.predictions import Precision, autocast
from contextcaps.models import CapsuleNetwork
from contextcaps.training.config import TrainConfig

__all__ = ["FeatureLoader", "Features", "compute_features"]

_FORMAT = 2
_BATCH = 64
"""Images at once. Fixed, since what augmentation draws depends on it."""
_SEED = 0
"""Seed of the views' augmentation: the same in all runs, which can then share them."""


class Features:
    """A backbone's features of all images of a prepared copy, memory-mapped.

    Args:
        folder: what `compute_features` made.
        prepared: the images that they are of.

    Raises:
        DataError: they are not there, damaged, or those of other images.
    """

    def __init__(self, folder: Path, prepared: Prepared) -> None:
        self.folder, self.prepared = folder, prepared
        require_whole(folder)
        try:
            shape = tuple(json.loads((folder / "metadata.json").read_text(encoding="utf-8"))["shape"])
            self.values: np.ndarray = np.memmap(folder / "features.bin", np.float16, "r", shape=shape)
            """[V, n, C, H, W], float16."""
            size = (*shape[:2], len(prepared.classes))
            self.targets: np.ndarray = np.memmap(folder / "targets.bin", np.uint8, "r", shape=size)
            """[V, n, J], uint8: a class that has left a view's crop is not in it; `UNKNOWN` as in the images' own."""
            sizes = [(folder / name).stat().st_size for name in ("features.bin", "targets.bin")]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder}: not a whole copy of features ({error!r})") from None
        if shape[1] != len(prepared) or sizes != [self.values.nbytes, self.targets.nbytes]:
            raise DataError(f"{folder}: not the features of {len(prepared)} images")

    @property
    def views(self) -> int:
        return self.values.shape[0]

    def __len__(self) -> int:
        return self.values.shape[1]


class FeatureLoader(GatheringLoader[FeatureBatch]):
    """Batches of features, each image in the view whose turn it is.

    Args:
        features: all of them.
        batch_size: images per batch.
        settings: those of `GatheringLoader`.
    """

    def __init__(self, features: Features, batch_size: int, **settings: Any) -> None:
        super().__init__(len(features), batch_size, **settings)
        self.features = features
        self._first = np.random.default_rng(self.seed).integers(features.views, size=len(features))  # [n]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.features.prepared.classes

    def _gather(self, indices: np.ndarray, epoch: int, step: int) -> FeatureBatch:
        features = self.features
        views = (self._first[indices] + epoch) % features.views  # [B]
        values = torch.from_numpy(features.values[views, indices])  # [B, C, H, W]
        targets = torch.from_numpy(features.targets[views, indices])  # [B, J]
        ids = tuple(features.prepared.ids[index] for index in indices)
        values = values.pin_memory() if self.pin_memory else values
        return FeatureBatch(values, targets, indices, ids, epoch, step)


def compute_features(
    network: CapsuleNetwork,
    prepared: Prepared,
    config: TrainConfig,
    precision: Precision,
    augmented: bool,
    progress: bool = True,
) -> Features:
    """Open the features of a prepared copy, and compute them first if they are not there.

    Args:
        network: has the backbone, frozen, on the device to compute on.
        prepared: the images.
        config: the run's: its cache folder and, for views, its augmentation.
        precision: of the computation; what is kept is float16.
        augmented: make `config.views` views of each image, rather than take it as it is.
        progress: show progress on the error stream.

    Raises:
        DataError: the folder cannot be written to, or has not enough room.
    """
    augmented = augmented and config.augmentation
    views = config.views if augmented else 1
    augmentation = Augmentation(config.augment, _SEED) if augmented else None
    folder = cache_folder(config.cache)
    key = _key(network, prepared, augmentation, views, precision)
    final = folder / f"{prepared.kind}-{prepared.fingerprint}-features-{key}"

    def tell_waiting() -> None:
        if progress:
            print("another process is computing the features; waiting for it", file=sys.stderr, flush=True)

    shape = (views, len(prepared), *network.feature_shape)
    needed = 2 * int(np.prod(shape)) + views * len(prepared) * len(prepared.classes)

    def fill(temporary: Path) -> None:
        if shutil.disk_usage(temporary).free < needed:
            raise OSError("the disk is full")
        _write(network.folded(), prepared, augmentation, precision, shape, temporary, progress)

    try:
        return open_or_fill(final, lambda: _open(final, prepared), fill, tell_waiting)
    except OSError as error:
        raise DataError(
            f"{folder}: the features cannot be kept there ({error.strerror or error}): they need {needed:,} bytes. "
            "Free some space, choose another folder with --cache, or fewer --views"
        ) from error


def _open(final: Path, prepared: Prepared) -> Features | None:
    """Return the features if they are there and whole."""
    try:
        return Features(final, prepared)
    except DataError:
        return None


def _key(
    network: CapsuleNetwork, prepared: Prepared, augmentation: Augmentation | None, views: int, precision: str
) -> str:
    """Return a hash of 16 digits of everything that features depend on besides the images."""
    digest = hashlib.sha256()
    for tensor in (*network.backbone.state_dict().values(), network.pixel_mean, network.pixel_std):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    digest.update(prepared.indices.tobytes())  # images that cannot be read may have been left out
    described = {
        "format": _FORMAT,
        "backbone": network.config.backbone,
        "weights": digest.hexdigest(),
        "prepared": prepared.folder.name,
        "views": views,
        "augment": None if augmentation is None else dataclasses.asdict(augmentation.config),
        "precision": precision,
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def _write(
    network: CapsuleNetwork,
    prepared: Prepared,
    augmentation: Augmentation | None,
    precision: Precision,
    shape: tuple[int, ...],
    folder: Path,
    progress: bool,
) -> None:
    """Fill a folder with features and targets, view after view."""
    device = network.pixel_mean.device
    versions = f", {shape[0]} versions of each image" if shape[0] > 1 else ""
    with (
        open(folder / "features.bin", "wb") as values,
        open(folder / "targets.bin", "wb") as targets,
        progress_of(f"features of {prepared.name}{versions}", shape[0] * shape[1], progress) as tell,
        torch.inference_mode(),
        autocast(device, precision),
    ):
        for features, truth in _views(network, prepared, augmentation, shape[0], device):
            values.write(features.cpu().contiguous().numpy().tobytes())
            targets.write(truth.cpu().contiguous().numpy().tobytes())
            tell(len(features))
    (folder / "metadata.json").write_text(json.dumps({"shape": shape}), encoding="utf-8")


def _views(
    network: CapsuleNetwork, prepared: Prepared, augmentation: Augmentation | None, views: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features [B, C, H, W], float16, and targets [B, J] of all batches of all views."""
    loader = PreparedLoader(prepared, _BATCH)
    for view in range(views):
        for batch in loader:
            batch = batch.to(device)
            images, targets = batch.images, batch.targets  # [B, 3, H, W], [B, J]
            if augmentation is not None:
                changed = augmentation(
                    images, targets, epoch=view, step=batch.step, boxes=batch.boxes, masks=batch.masks
                )
                images, targets = changed.images, changed.targets
            features = network.features(images).half()  # [B, C, H, W]
            if not bool(features.isfinite().all()):
                raise DataError(
                    f"freeze: features of backbone {network.config.backbone} are no numbers, or too large for float16; "
                    "train without --freeze, or with another backbone"
                )
            yield features, targets.to(torch.uint8)

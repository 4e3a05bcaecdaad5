"""Train a model for each fold of a source on the other folds: every image is judged by one that never saw it."""

import dataclasses
import functools
import sys
import tempfile
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from contextcaps.data.cache import cache_folder
from contextcaps.data.problems import OnBad
from contextcaps.data.source import Source, Subset
from contextcaps.data.source_registry import absolute_source, open_source, register_source
from contextcaps.data.splits import FRACTIONS, iterative_split
from contextcaps.tagging import Tagger, load
from contextcaps.training.config import TrainConfig
from contextcaps.training.resolved import network_config
from contextcaps.training.trainer import train

__all__ = ["FoldSource", "fold_config", "fold_indices", "train_folds"]

_ANY_CLASSES = ("one", "other")
"""Stand for the classes of the data, of which the backbone does not depend."""


def fold_indices(source: Source, folds: int, seed: int) -> list[np.ndarray]:
    """Divide the images of a source into folds that have every class alike; return the indices of each, ascending."""
    shares = {str(fold): 1 / folds for fold in range(folds)}
    return list(iterative_split(source.targets() == 1, shares, seed).values())


@register_source("fold")
class FoldSource(Subset):
    """Gives the images of another source outside of one fold, divided into a training and a validation part.

    Args:
        location: the other source's name, as `urllib.parse.quote` writes it.
        split: "train" or "val".
        folds: number of folds.
        fold: the one that is left out, from 0 on.
        seed: of both divisions.
        part: split of the other source; None opens it without.
    """

    def __init__(
        self,
        location: str,
        *,
        on_bad: OnBad = "stop",
        split: str = "train",
        folds: int = 5,
        fold: int = 0,
        seed: int = 0,
        part: str | None = None,
    ) -> None:
        source, held_out = _divided(urllib.parse.unquote(location), on_bad, part, folds, seed)
        others = np.concatenate([own for k, own in enumerate(held_out) if k != fold])
        others.sort()
        total = FRACTIONS["train"] + FRACTIONS["val"]
        shares = {name: FRACTIONS[name] / total for name in ("train", "val")}
        chosen = iterative_split(source.targets()[others] == 1, shares, seed)[split]
        super().__init__(source, others[chosen].tolist(), split)
        self.splits = ("train", "val")


@functools.lru_cache(maxsize=1)
def _divided(spec: str, on_bad: OnBad, part: str | None, folds: int, seed: int) -> tuple[Source, list[np.ndarray]]:
    """Open a source and divide it into folds: once for the parts of all folds."""
    source = open_source(spec, on_bad=on_bad, **({} if part is None else {"split": part}))
    return source, fold_indices(source, folds, seed)


def fold_config(config: TrainConfig, fine_tune: bool = False) -> TrainConfig:
    """Return the configuration with which the folds' models are trained, but for their data and folders.

    That of a run, in one process. A backbone that starts from published weights, or from another model, stays as it
    began: heads on kept features are trained in a fraction of the time, and no backbone that has learned from the
    images judges them.

    Args:
        config: the run's.
        fine_tune: train the backbone as the run did.
    """
    one_process: dict[str, Any] = {"devices": 1, "nodes": 1, "shard": False}
    config = dataclasses.replace(config, val_data=None, val_as_test=False, split_seed=None, **one_process)
    network = network_config(config, _ANY_CLASSES)
    if fine_tune or config.freeze or not (network.has_published_weights or config.start_from is not None):
        return config
    reconstruction = 0.0 if network.reconstruction else config.reconstruction
    return dataclasses.replace(config, freeze=True, prepare=True, compile=False, reconstruction=reconstruction)


def train_folds(
    spec: str,
    config: TrainConfig,
    folds: int,
    *,
    part: str | None = None,
    fine_tune: bool = False,
    device: str = "auto",
    progress: bool = True,
) -> Iterator[tuple[Tagger, np.ndarray]]:
    """Train on all folds but one, for each; yield the model and the indices [m] of the images that it never saw.

    Runs, prepared images and features are in a temporary folder of the cache, and are removed in the end.

    Args:
        spec: the source that is divided.
        config: of the run that they are trained like.
        folds: their number, at least 2.
        part: the source's split; None opens it without.
        fine_tune: as for `fold_config`.
        device: where the models judge.
        progress: show the trainings' progress on the error stream.
    """
    spec, own = absolute_source(spec), fold_config(config, fine_tune)
    _divided.cache_clear()  # the data may have changed since
    _, held_out = _divided(spec, own.on_bad, part, folds, own.seed)
    cache = cache_folder(own.cache)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="folds-", dir=cache) as temporary:
        for fold, images in enumerate(held_out):
            if progress:
                print(f"fold {fold + 1} of {folds}: {len(images):,} images left out", file=sys.stderr, flush=True)
            options = {"folds": folds, "fold": fold, "seed": own.seed, **({} if part is None else {"part": part})}
            name = f"fold:{urllib.parse.quote(spec, safe='')}?{urllib.parse.urlencode(options)}"
            folder = Path(temporary, str(fold))
            result = train(dataclasses.replace(own, data=name, out=str(folder), cache=temporary), progress=progress)
            yield load(result.folder, device), images

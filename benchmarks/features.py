"""Open a model and a source for a benchmark of heads, and compute the features of the images once.

Features of the same images by the same backbone are computed once where `--features FOLDER` keeps them: heads that were
trained on one frozen backbone share them.
"""

import argparse
import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import contextcaps
from contextcaps.data import Source, open_source
from contextcaps.data.loading import StreamLoader
from contextcaps.data.source import Subset
from contextcaps.tagging import Tagger

__all__ = ["BATCH", "Loaded", "load_features", "option_parser"]

BATCH = 64


class Loaded(NamedTuple):
    """A model, and the drawn images of a source."""

    tagger: Tagger
    source: Source
    """The drawn images alone, in the source's order."""
    features: Tensor
    """[n, C, H, W], float16."""
    targets: Tensor
    """[n, J], classes as the source has them."""


def option_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that say what is measured of what; a benchmark adds its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--split")
    parser.add_argument("--model", default="coco80", help="a shipped model or a run's folder")
    parser.add_argument("--features", type=Path, help="keep the features in this folder, or take them from it")
    parser.add_argument("--images", type=int, help="so many of them, drawn with seed 0; all by default")
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--json", type=Path)
    return parser


def load_features(arguments: argparse.Namespace) -> Loaded:
    """Return what the options name."""
    tagger = contextcaps.load(arguments.model, runtime="torch")
    split = {} if arguments.split is None else {"split": arguments.split}
    source: Source = open_source(arguments.data, on_bad="skip", **split)
    if arguments.images is not None and arguments.images < len(source):
        drawn = np.random.default_rng(0).choice(len(source), arguments.images, replace=False)
        source = Subset(source, np.sort(drawn).tolist(), "drawn")
    file = None if arguments.features is None else arguments.features / f"{_fingerprint(tagger, source)}.pt"
    if file is not None and file.is_file():
        return Loaded(tagger, source, *torch.load(file))
    features, targets = [], []
    for batch in StreamLoader(source, tagger.config.image_size, BATCH):
        with torch.inference_mode():
            features.append(tagger.features(batch.images).half())
        targets.append(batch.targets)
    found = torch.cat(features), torch.cat(targets)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(found, file)
    return Loaded(tagger, source, *found)


def _fingerprint(tagger: Tagger, source: Source) -> str:
    digest = hashlib.sha256(f"{source.fingerprint()} {tagger.config.image_size}".encode())
    for weights in tagger.network.backbone.state_dict().values():
        digest.update(weights.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]

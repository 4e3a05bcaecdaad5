"""A training run small enough for tests: a few seconds, everything switched on that resuming depends on."""

import contextlib
import csv
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from contextcaps.data.source import Source
from contextcaps.training import recording
from contextcaps.training.config import TrainConfig

FLAGS = {
    "data": "scenes?count=48&size=32",
    "model": "contextcaps-rw-crf-corr",
    "image_size": 32,
    "backbone": "small",
    "options": {"capsules.types": 2},
    "epochs": 3,
    "batch_size": 8,
    "ema": 0.9,
    "checkpoint_steps": 1,
    "log_steps": 2,
    "accelerator": "cpu",
}
"""Six batches an epoch."""


def small_config(out: Path, cache: Path, **changes: Any) -> TrainConfig:
    """The configuration of such a run."""
    return TrainConfig.from_dict({**FLAGS, "out": str(out), "cache": str(cache), **changes})


def small_words(out: Path, cache: Path, **changes: Any) -> list[str]:
    """The same as words of the command line."""
    words = ["train"]
    for name, value in {**FLAGS, "out": out, "cache": cache, **changes}.items():
        if name == "options":
            words += ["--set", *(f"{option}={each}" for option, each in value.items())]
        elif isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{name.replace('_', '-')}")
        else:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words


@contextlib.contextmanager
def quick_runs() -> Iterator[None]:
    """Runs without what takes as long as their training: curves, and a look at the images of the data each time.

    Both are tested without this: test_training.py looks into a whole run, test_fingerprints.py at contents.
    """
    contents, seen = Source.contents, {}

    @functools.wraps(contents)
    def remembered(source: Source) -> str:
        key = source.fingerprint()
        if key not in seen:
            seen[key] = contents(source)
        return seen[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "write_curves", lambda *arguments: None)
        patch.setattr(Source, "contents", remembered)
        yield


def finals(run: Path) -> dict[str, Any]:
    """What a run ended with, except what tells of time: for comparisons bit by bit."""
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    trained = json.loads((run / "model" / "trained.json").read_text(encoding="utf-8"))
    return {
        "model": (run / "model" / "model.safetensors").read_bytes(),
        "config": (run / "model" / "config.json").read_text(encoding="utf-8"),
        "trained": {**trained, "versions": None},  # the source tree may be edited meanwhile
        "metrics": (run / "metrics.csv").read_text(encoding="utf-8"),
        "state": _bits(state),
    }


def _bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    if isinstance(value, dict):
        return {name: _bits(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_bits(each) for each in value]
    return value


def rows(run: Path) -> list[dict[str, str]]:
    """The rows of a run's metrics.csv."""
    with open(run / "metrics.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))

"""Audit the labels of a source: choose who judges which image, and rank the labels by how improbable they are."""

import dataclasses
import sys
from pathlib import Path

import numpy as np

from contextcaps.data import DataError, Source, open_source
from contextcaps.data.problems import OnBad
from contextcaps.data.progress import progress_of
from contextcaps.data.source_registry import absolute_source
from contextcaps.data.vocabulary import canonical_split
from contextcaps.documents import counted
from contextcaps.evaluation.scoring import class_order
from contextcaps.models.loading import DEFAULT_MODEL, model_folder, shipped_folder
from contextcaps.tagging import Audit, Judge, Tagger, audit_labels, load
from contextcaps.tagging.audit import Kind, require_labels
from contextcaps.training.config import TrainConfig
from contextcaps.training.data import Part
from contextcaps.training.runs import Run
from contextcaps.training.seen import Seen, count_seen

__all__ = ["audit"]


def audit(
    data: str,
    model: str | Path = DEFAULT_MODEL,
    *,
    split: str | None = None,
    folds: int | None = None,
    fine_tune: bool = False,
    trust_model: bool = False,
    top: int = 100,
    only: Kind | None = None,
    batch_size: int = 64,
    device: str = "auto",
    workers: int | None = None,
    on_bad: OnBad = "stop",
    progress: bool = True,
) -> Audit:
    """Find labels that are probably wrong or missing.

    Each label, present or absent, is judged by its calibrated probability where the model is told all other labels of
    the image. A model that cannot be told is not. Unknown labels are not judged.

        found = contextcaps.audit("table:labels.csv", "runs/mine", folds=5)
        for each in found.suspicions:
            print(each.image, each.suggestion, each.name, each.probability, each.reason)

    Args:
        data: the name of a source with the model's classes.
        model: a shipped model's name, a run's folder, a model's folder, or `hf:OWNER/NAME` on the Hugging Face Hub.
        split: one of the source's own splits; None opens it without.
        folds: train so many models with the configuration of the run `model`, each on the other folds, and let each
            judge the images that it has not learned from. A pretrained backbone stays as it began.
        fine_tune: with folds, train the backbone as the run did.
        trust_model: let the model judge images that it has learned from.
        top: explain and return so many labels at most.
        only: return labels that are probably "wrong" (present), or "missing", alone; None returns both.
        batch_size: images to compute at once.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".
        workers: images to decode at once; as many as there are cores by default.
        on_bad: "stop" at images that cannot be read, or "skip" them.
        progress: show progress and remarks on the error stream.

    Raises:
        DataError: the source has no label, or other classes than the model.
        ValueError: the model has learned from these images, or an argument is wrong.
    """
    if top < 1:
        raise ValueError(f"top: expected at least 1, got {top}")
    if only not in (None, "wrong", "missing"):
        raise ValueError(f"only: expected wrong or missing, got {only!r}")
    if folds is not None and folds < 2:
        raise ValueError(f"folds: expected at least 2, got {folds}")
    if folds is None and fine_tune:
        raise ValueError("fine_tune: expected folds beside it, as nothing is trained without; add --folds 5")
    if folds is not None and trust_model:
        raise ValueError("trust_model: expected one of folds and trust_model, got both")
    config = None if folds is None else _run_config(model)
    source = open_source(data, on_bad=on_bad, **({} if split is None else {"split": split}))
    require_labels(source)
    if config is not None and folds is not None:
        from contextcaps.experiments.folds import train_folds

        accelerator = {"cpu": "cpu", "auto": config.accelerator}.get(device, "gpu")
        config = dataclasses.replace(config, on_bad=on_bad, accelerator=accelerator)
        trained = train_folds(data, config, folds, part=split, fine_tune=fine_tune, device=device, progress=progress)
        judges = [Judge(tagger, images) for tagger, images in trained]
        by = f"Judged by {folds} models, each trained on the other folds with the configuration of {model}."
    else:
        tagger = load(model, device)
        class_order(tagger.network, source)  # refuses other classes, before the work
        if not trust_model:
            _require_unseen(model, tagger, source, data, progress)
        judges = [Judge(tagger, np.arange(len(source)))]
        by = f"Judged by {model} ({tagger.config.model})."
    network = judges[0].tagger.config
    if progress and not network.takes_known:
        print(
            f"note: {model}: {network.model} cannot be told labels, so each is judged by the image alone",
            file=sys.stderr,
            flush=True,
        )
    with progress_of(f"judging the labels of {source.name}", len(source), progress) as tell:
        found = audit_labels(
            source, judges, top=top, only=only, batch_size=batch_size, workers=workers, on_bad=on_bad, tell=tell
        )
    return dataclasses.replace(found, by=by)


def _run_config(model: str | Path) -> TrainConfig:
    """Return the configuration of a run."""
    if shipped_folder(model) is not None or not Path(model, "config.yaml").is_file():
        raise ValueError(
            f"folds: expected a run's folder as the model, with whose configuration the folds' models are trained, got "
            f"{model}; contextcaps train --data SOURCE --out RUN makes one"
        )
    return Run.open(model).config


def _require_unseen(model: str | Path, tagger: Tagger, source: Source, data: str, progress: bool) -> None:
    """Refuse a model that has learned from the images; remark where that is not known."""
    seen = _seen(model, tagger, source, data)
    if seen is None:
        if progress:
            print(f"note: {model}: whether it has learned from these images is not known", file=sys.stderr, flush=True)
    elif seen.train:
        raise DataError(
            f"{model}: has learned from {seen.train:,} of {counted(seen.of, 'image')} of {source.name}, and would "
            "repeat their labels, wrong ones too; --folds 5 trains 5 models that each judge images they have not "
            "learned from, --trust-model lets it judge them all the same"
        )


def _seen(model: str | Path, tagger: Tagger, source: Source, data: str) -> Seen | None:
    """Count the images that a model has learned from, by their fingerprints, or where it names the data as its own."""
    if isinstance(model, str) and model.startswith("hf:"):
        return None
    place = model_folder(model)
    part = Part(source, tagger.config.image_size)
    seen = None if shipped_folder(model) is not None else count_seen(place.parent, part, TrainConfig())
    trained = tagger.trained
    is_own = trained is not None and absolute_source(data) == trained.data
    may_be_train = source.split is None or canonical_split(source.split) in (None, "train")
    return Seen(len(source), 0, len(source)) if seen is None and is_own and may_be_train else seen

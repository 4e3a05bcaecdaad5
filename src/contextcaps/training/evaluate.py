"""Evaluation of a run or an exported model: every image once, whatever the number of processes."""

import contextlib
import dataclasses
import datetime
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from contextcaps.data import DataError, open_source
from contextcaps.data.degradation import Degradation, DegradedSource
from contextcaps.data.problems import OnBad
from contextcaps.data.progress import progress_of
from contextcaps.data.source_registry import absolute_source, missing_place
from contextcaps.data.splits import open_part
from contextcaps.data.unknown import class_frequencies, labels_or_nan
from contextcaps.evaluation.known.cooccurrence import fit_cooccurrence
from contextcaps.evaluation.known.measuring import KnownEvaluation, measure_known, require_share
from contextcaps.evaluation.known.report import write_known
from contextcaps.evaluation.predictions import Predictions
from contextcaps.evaluation.report import Evaluation, evaluate_predictions, write_report
from contextcaps.evaluation.scoring import Scores, class_order, predictions_of, score
from contextcaps.models import CapsuleNetwork
from contextcaps.models.loading import load_model, shipped_folder
from contextcaps.models.trained import Trained, without_folders
from contextcaps.out_of_memory import is_out_of_memory
from contextcaps.rank_zero import is_rank_zero
from contextcaps.training.config import KEPT, TrainConfig
from contextcaps.training.data import Part, open_parts, require_places
from contextcaps.training.failures import OutOfMemory
from contextcaps.training.processes import (
    device_name,
    make_fabric,
    resolve_processes,
    resolved_precision,
)
from contextcaps.training.runs import Run, require_writable
from contextcaps.training.seen import Seen, count_seen

__all__ = ["Elsewhere", "Measured", "evaluate"]


Elsewhere = Callable[[CapsuleNetwork, Part, TrainConfig, Callable[[int], None]], tuple[Tensor, Tensor]]
"""Computes the scores [n, J] of a part's images, and says which images they are [n]; counts them as they are done."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """An evaluation and where it was written."""

    evaluation: Evaluation
    predictions: Predictions
    """What the model said of every image."""
    folder: Path
    files: list[Path]
    """Those in the folder; none in processes other than rank zero."""
    known: KnownEvaluation | None = None
    """What known labels are worth, where shares of them were asked for."""


def evaluate(
    model: str | Path,
    data: str | None = None,
    *,
    split: str | None = None,
    out: Path | str | None = None,
    batch_size: int = 64,
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto",
    accelerator: Literal["auto", "cpu", "gpu"] = "auto",
    devices: int = 1,
    nodes: int = 1,
    prepare: bool | None = None,
    cache: Path | str | None = None,
    on_bad: OnBad | None = None,
    resamples: int | None = None,
    seed: int = 0,
    known: Sequence[float] = (),
    degrade: str | None = None,
    progress: bool = True,
    elsewhere: Elsewhere | None = None,
) -> Measured:
    """Measure a model on data, and write the report.

    Args:
        model: a shipped model's name, a run's folder, a model's folder, or `hf:OWNER/NAME` on the Hugging Face Hub.
        data: a source's name; by default that of the run, or the one that the model says it was trained on. A shipped
            model needs it.
        split: of the training data: "train", "val" or "test", by default test, or val where there is no test; of other
            data: one of the source's own splits, by default its test or validation split, or all of it.
        out: the report's folder; by default `evaluation` in the run, or in the current folder.
        batch_size: images per process to compute at once.
        precision: of the computation; auto is fp32.
        accelerator, devices, nodes: as in `TrainConfig`.
        prepare: keep a prepared copy of the images in the cache; by default as in training.
        cache: folder for prepared copies; by default as in training.
        on_bad: stop at bad data, or skip it; by default as in training.
        resamples: of the bootstrap.
        seed: of the bootstrap, and of which labels are known.
        known: shares of each image's labels to tell the network; it is then measured on the others, too.
        degrade: measure on degraded images: "small", "blur", "occlude", "surroundings" or "uncovered", or one with a
            strength, such as "small:48" (`contextcaps.data.degradation`).
        progress: show progress on the error stream.
        elsewhere: computes the scores instead of this process, such as `contextcaps.corpus.predicting.OnRay`; images
            are then decoded as they are needed.

    Raises:
        ValueError: the model, the data or what was asked for is wrong.
        OutOfMemory: what it says.
    """
    if resamples is not None and resamples < 1:
        raise ValueError(f"resamples: expected a whole number of at least 1, got {resamples}")
    if elsewhere is not None and (known or devices * nodes > 1):
        raise ValueError("elsewhere: known labels, and several devices or nodes, are not possible with it")
    if split is not None and not split:
        raise ValueError("split: expected a name, got an empty one")
    degradation = None if degrade is None else Degradation.parse(degrade)
    shipped = shipped_folder(model)
    if shipped is not None and data is None:
        raise ValueError(f"data: expected a source, as the data of the shipped model {model} are not part of it")
    run = Run.open(model) if shipped is None and Path(model, "config.yaml").is_file() else None
    if out is not None:
        require_writable(Path(out), "--out")
    network, trained = load_model(model)
    learned_from = trained if shipped is None else None
    config = _configuration(run, learned_from, data)
    trained_on = run.config.data if run is not None else None if learned_from is None else learned_from.data
    own = data is None or absolute_source(data) == trained_on or _has_moved(run, config)
    if data is None:
        require_places(config, f"contextcaps evaluate {model} --data")
    for share in known:
        require_share(share, network.config.num_classes)
    train_labels = _train_labels(network, run, learned_from) if known else None  # before the work, not after it
    config = resolve_processes(
        dataclasses.replace(
            config,
            batch_size=batch_size,
            precision="fp32" if precision == "auto" else precision,
            accelerator=accelerator,
            devices=devices,
            nodes=nodes,
            shard=False,
            prepare=elsewhere is None and (config.prepare if prepare is None else prepare),
            cache=config.cache if cache is None else str(cache),
            on_bad=config.on_bad if on_bad is None else on_bad,
        )
    )
    part, name = _part(config, network, own, split)
    class_order(network, part.source)  # refuses other classes, before the work
    if degradation is not None:
        part.source = DegradedSource(part.source, degradation)
    if is_rank_zero():
        part.prepare(config, progress)  # before the other processes are started
    fabric, used = make_fabric(config), resolved_precision(config)
    fabric.barrier()
    if not is_rank_zero():
        part.prepare(config, progress=False)

    @contextlib.contextmanager
    def shown(what: str) -> Iterator[Callable[[int], None]]:
        with progress_of(f"{what} on {name}", len(part), progress and fabric.is_global_zero) as tell:
            yield lambda count: tell(count * fabric.world_size)

    try:
        if elsewhere is None:
            loader = part.loader(config, rank=fabric.global_rank, world_size=fabric.world_size)
            scores = score(network.to(fabric.device), loader, part.source, used, shown, known, seed)
        else:
            with shown("evaluating") as tell:
                scores = Scores(predictions_of(network, part.source, *elsewhere(network, part, config, tell)), {})
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory("out of memory; try a smaller --batch-size", None if run is None else run.folder) from error
    found = scores.predictions
    folder = _folder(run, out, part, name if degrade is None else f"{name}-{degradation}".replace(":", "-"), own)
    evaluation: Any = None
    worth: Any = None
    if fabric.is_global_zero:
        own_frequencies = class_frequencies(found.targets.numpy())  # [J]
        frequencies = trained.frequencies if trained is not None else tuple(own_frequencies.tolist())
        thresholds = None if trained is None else trained.thresholds
        evaluation = evaluate_predictions(found, frequencies, thresholds, seed, resamples)
        if train_labels is not None:
            control = fit_cooccurrence(train_labels, seed)
            worth = measure_known(found, scores.told, control, len(train_labels), resamples=resamples, seed=seed)
    evaluation, worth = fabric.broadcast((evaluation, worth))
    files: list[Path] = []
    if fabric.is_global_zero:
        facts = {
            "model": network.config.model,
            "from": str(model),
            "data": config.data,
            "part": name,
            "images": len(found),
            "seed": "not known" if trained is None else trained.seed,
            "epoch": "not known" if trained is None else trained.epoch,
            "precision": used,
            "date": datetime.date.today().isoformat(),
            "hardware": device_name(fabric.device),
        }
        if isinstance(part.source, DegradedSource):
            facts["degraded"] = part.source.describe()
        if trained is None:
            facts["constant prior"] = "frequencies of these data: the model does not say those of its training data"
        place = Path(model) if shipped is None else shipped
        learned = place if run is not None else place.parent  # a run's model/ lies in the run
        seen = count_seen(learned, part, config) if degradation is None else None  # not by other pixels
        if seen is None and (degradation is None or name != "all"):
            seen = _seen_by_name(config, name, own, len(part))
        if seen is not None:
            evaluation = dataclasses.replace(evaluation, seen=dataclasses.asdict(seen))
            facts["in its training part"] = f"{seen.train:,} of {seen.of:,} images"
            facts["in its validation part"] = f"{seen.val:,} of {seen.of:,} images"
            if seen.train:
                print(f"warning: {seen.warning(model)}", file=sys.stderr, flush=True)
        title = f"{network.config.model} on {without_folders(config.data)}, {name}"
        title += "" if degradation is None else f", {degradation}"
        try:
            files = write_report(evaluation, folder, title, facts)
            if worth is not None:
                files += write_known(worth, folder, title, facts)
        except OSError as error:  # what was measured is not to be lost
            why = error.strerror or error
            print(
                f"warning: {folder}: the report cannot be written ({why}); choose another folder with --out",
                file=sys.stderr,
                flush=True,
            )
    return Measured(evaluation, found, folder, files, worth)


def _seen_by_name(config: TrainConfig, name: str, own: bool, images: int) -> Seen | None:
    """Return how many images of the model's own data it has learned from, where it has no fingerprints of them.

    That is so for a model's folder without its run. Its data are divided as they were, so each part is what it was.
    """
    if not own:
        return None
    if name != "all":
        return Seen(images if name == "train" else 0, images if name == "val" else 0, images)
    parts = open_parts(config)
    return Seen(len(parts["train"]), len(parts["val"]), images)


def _train_labels(network: CapsuleNetwork, run: Run | None, trained: Trained | None) -> Tensor:
    """Return the labels [n, J] of the images that a network was trained on, in its order of classes; NaN: unknown."""
    network.config.require_takes_known()
    if run is None and trained is None:
        raise ValueError(
            "known: expected a run, or a model's folder that says what it was trained on: the co-occurrence of labels, "
            "which known labels are compared with, is that of the training data"
        )
    config = _configuration(run, trained, None)
    part = open_parts(config)["train"]
    return labels_or_nan(torch.from_numpy(part.targets()))[:, class_order(network, part.source)]


def _folder(run: Run | None, out: Path | str | None, part: Part, name: str, own: bool) -> Path:
    """Return where the report goes: one place for each part of the run's own data, and for each other source."""
    if out is not None:
        return Path(out)
    return _reports(run) / (name if own else f"{part.source.kind}-{name}-{part.source.fingerprint()[:8]}")


def _reports(run: Run | None) -> Path:
    """Return the folder of reports: in the run, or in the current folder."""
    return (Path() if run is None else run.folder) / "evaluation"


def _configuration(run: Run | None, trained: Trained | None, data: str | None) -> TrainConfig:
    """Return the run's configuration, or one with the data that the model was trained on; other data if asked for."""
    config = run.config if run is not None else TrainConfig()
    if run is None and trained is not None:
        config = dataclasses.replace(
            config,
            data=trained.data,
            val_data=trained.val_data,
            seed=trained.seed,
            split_seed=trained.split_seed,
            val_as_test=trained.val_as_test,
            **{name: value for name, value in trained.kept.items() if name in KEPT},
        )
    if data is None and run is None and trained is None:
        raise ValueError("data: expected a source, as the model does not say what it was trained on")
    if data is None or absolute_source(data) == config.data:
        return config
    return dataclasses.replace(config, data=absolute_source(data), val_data=None)


def _has_moved(run: Run | None, config: TrainConfig) -> bool:
    """Return whether a run's data are no longer where they were, but are what the configuration names."""
    if run is None or run.config.val_data is not None or missing_place(run.config.data) is None:
        return False
    try:
        parts = open_parts(config)
    except DataError:  # other data, divided otherwise
        return False
    return {name: parts[name].source.contents() for name in ("train", "val")} == run.facts.get("contents")


def _part(config: TrainConfig, network: CapsuleNetwork, own: bool, split: str | None) -> tuple[Part, str]:
    """Open the part of the data to measure on; return it and its name."""
    size = network.config.image_size
    if own and split != "all":
        parts = open_parts(config)
        name = split if split is not None else "test" if "test" in parts else "val"
        if name not in parts:
            raise DataError(f"split: expected one of {', '.join(parts)} of {config.data}, or all, got {name!r}")
        return Part(parts[name].source, size), name
    if split is None:
        source = open_part(config.data, ("test", "val"), on_bad=config.on_bad)
        return Part(source, size), source.split or "all"
    source = open_source(config.data, on_bad=config.on_bad, **({} if split == "all" else {"split": split}))
    return Part(source, size), split

"""Training from beginning to end: data, network, loop, and the exported model."""

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contextcaps.atomic import write_atomically
from contextcaps.data.doubts import class_doubts
from contextcaps.data.problems import Problem, left_out
from contextcaps.models import CapsuleNetwork, ModelConfig
from contextcaps.models.registry import require_buildable
from contextcaps.rank_zero import is_rank_zero
from contextcaps.training.class_weights import class_weights
from contextcaps.training.config import TrainConfig
from contextcaps.training.data import (
    Part,
    check_validation,
    keep_features,
    open_training_parts,
    require_places,
)
from contextcaps.training.elastic import elastic_run, is_restart, require_named_run
from contextcaps.training.export import export, export_best_so_far, mark_best_if_last
from contextcaps.training.failures import StoppedRun, record_failures
from contextcaps.training.labels import learn_labels
from contextcaps.training.loop import TrainingLoop
from contextcaps.training.losses import resolve_loss
from contextcaps.training.processes import (
    Fabric,
    device_name,
    keep_global_batch,
    make_fabric,
    resolve_processes,
    resolved_precision,
)
from contextcaps.training.recording import Recorder, SilentRecorder
from contextcaps.training.resolved import (
    ANY_CLASSES,
    network_config,
    require_same_network,
    with_absolute_places,
    with_fitting_batches,
)
from contextcaps.training.runs import Run, RunError, RunState, now, versions
from contextcaps.training.seen import record_seen
from contextcaps.training.starting import StartingModel, starting_model, with_starting_model
from contextcaps.training.step import TaggingModule
from contextcaps.training.validation import Validation

__all__ = ["TrainingResult", "resume", "train"]


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """A finished run."""

    folder: Path
    """The run's."""
    model: Path
    """The exported model's folder, in the run's."""
    history: list[dict[str, float]]
    """One record per epoch."""
    best: dict[str, float]
    """The epoch whose weights were exported."""
    parameters: int
    """Weights of the network."""


def train(config: TrainConfig | None = None, *, progress: bool = True, **settings: Any) -> TrainingResult:
    """Train a network in a new run.

        result = contextcaps.train(data="scenes", model="contextcaps", epochs=5)
        tagger = contextcaps.load(result.folder)

    Args:
        config: how; by default `TrainConfig` with the settings.
        progress: show progress on the error stream.
        settings: fields of `TrainConfig` that replace the configuration's.

    Raises:
        ValueError: something about the configuration, the data or the folder is wrong.
        Diverged: the loss or the weights became infinite or no numbers.
        OutOfMemory, DiskFull: what they say; all three are a `TrainingFailure`, which is an `OSError`.
        StoppedRun: somebody pressed Ctrl-C; the run was saved.
    """
    config = dataclasses.replace(config, **settings) if config is not None else TrainConfig.from_dict(settings)
    require_named_run(config)
    if is_restart() and _has_begun_here(config):
        assert config.out is not None
        return resume(config.out, progress=progress)
    config = with_absolute_places(resolve_processes(config))
    start = starting_model(config)
    config = with_starting_model(config, start)
    network = network_config(config, ANY_CLASSES)  # refused before the data are opened, which may take long
    require_buildable(network, published=start is None)
    if start is not None:
        start.require_fitting(network)
    if is_rank_zero():  # the others come when it has made the folder
        Run.require_free(config)
    parts = open_training_parts(config)
    _say_what_was_assumed(parts[0], progress)
    if start is not None and progress and is_rank_zero():
        print(f"note: {start.describe(config, len(parts[0].classes))}", file=sys.stderr, flush=True)
    network = network_config(config, parts[0].classes)
    require_buildable(network, published=start is None)
    config = dataclasses.replace(config, backbone=network.backbone, loss=resolve_loss(config.loss, network))
    if config.devices * config.nodes > 1 and not config.prepare and config.on_bad == "skip":
        raise ValueError("on_bad: expected stop, or a prepared copy, with several processes: they have to keep in step")
    config = with_fitting_batches(config, len(parts[0]))
    notes = check_validation(parts[0].source, parts[1].source)
    if progress and is_rank_zero():
        for note in notes:
            print(f"note: {note}", file=sys.stderr, flush=True)
    run = Run.create(config) if is_rank_zero() else None
    if run is not None and (elastic := elastic_run()) is not None:
        run.record(elastic=elastic)
    try:
        return _train(run, config, parts, network, start, progress)
    except (ValueError, KeyboardInterrupt):
        if run is not None:
            run.discard()  # unless it has begun
        raise


def resume(
    folder: Path | str, *, data: str | None = None, val_data: str | None = None, progress: bool = True
) -> TrainingResult:
    """Go on with a run that was stopped, killed or failed; a finished one is only exported again.

    Args:
        folder: the run's.
        data, val_data: where the run's data are now, if they have moved; other data are refused.
        progress: show progress on the error stream.

    Raises:
        as `train`.
    """
    run = Run.open(folder)
    places = {"data": data, "val_data": val_data}
    moved: dict[str, Any] = {name: place for name, place in places.items() if place is not None}
    config = keep_global_batch(dataclasses.replace(run.config, **moved))
    run.config = with_absolute_places(resolve_processes(config))
    require_places(run.config, f"contextcaps train --resume {run.folder} --data")
    require_buildable(network_config(run.config, ANY_CLASSES), published=False)  # its checkpoint has them
    parts = open_training_parts(run.config)
    network = network_config(run.config, parts[0].classes)
    require_same_network(run, network)
    start = starting_model(run.config)  # read only where the run was stopped before its first checkpoint
    return _train(run if is_rank_zero() else None, run.config, parts, network, start, progress)


def _has_begun_here(config: TrainConfig) -> bool:
    """Return whether an earlier start by the same torchrun has begun this run."""
    folder = Path(config.out or "").expanduser()
    return (folder / "config.yaml").is_file() and RunState.read(folder).facts.get("elastic") == elastic_run()


def _train(
    run: Run | None,
    config: TrainConfig,
    parts: tuple[Part, Part],
    network_config: ModelConfig,
    start: StartingModel | None,
    progress: bool,
) -> TrainingResult:
    """Train in every process; rank zero has the run, and its lock."""
    with contextlib.nullcontext() if run is None else run.locked(), record_failures(run):
        if run is not None:
            config = run.config
            for part in parts:
                part.prepare(config, progress)
            _record_data(run, parts)
            record_seen(run.folder, parts, config)
            config = with_fitting_batches(config, len(parts[0]))  # images that cannot be read may have been left out
            run.reconfigure(config)
        fabric = make_fabric(config)
        began: Any = fabric.broadcast(None if run is None else (run.folder, config.batch_size))
        if run is None:
            folder, batch_size = began
            config = dataclasses.replace(config, batch_size=batch_size)
            run = Run(folder, config)
            for part in parts:
                part.prepare(config, progress=False)
        loop, recorder = _loop(fabric, run, parts, network_config, start, progress)
        frequencies = np.asarray(loop.monitor.frequencies).tolist()
        try:
            result = loop.run()
            if fabric.is_global_zero:
                export(run, network_config, result, frequencies)
                run.record(state="finished", ended=now())
        except StoppedRun:
            if fabric.is_global_zero:
                export_best_so_far(run, network_config, loop.progress, frequencies)
                run.record(state="stopped", ended=now())
            raise
        finally:
            recorder.close()
        if fabric.is_global_zero and not config.prepare:
            _warn_left_out(config, [*loop.loader.problems.found, *loop.validation.loader.problems.found])  # type: ignore[attr-defined]
        parameters = sum(parameter.numel() for parameter in loop.network.parameters())
        assert result.best is not None
        return TrainingResult(run.folder, run.model_folder, result.history, result.best, parameters)


def _loop(
    fabric: Fabric,
    run: Run,
    parts: tuple[Part, Part],
    network_config: ModelConfig,
    start: StartingModel | None,
    progress: bool,
) -> tuple[TrainingLoop, SilentRecorder]:
    """Make the loop, at the state of the last checkpoint, and its recorder."""
    config, (training, validating) = run.config, parts
    share = {"rank": fabric.global_rank, "world_size": fabric.world_size}
    frequencies = torch.from_numpy(training.frequencies())  # [J]
    weights = None
    if config.class_weights != "none":
        counts = (training.targets() == 1).sum(axis=0, dtype=np.int64).tolist()
        weights = class_weights(counts, len(training), config.class_weights)
    torch.manual_seed(config.seed)
    state = run.checkpoints.load() if fabric.is_global_zero else None
    state = fabric.broadcast(state)
    begins = state is None  # else the checkpoint has every weight
    network = CapsuleNetwork(network_config, begins, start.weights if begins and start is not None else None)
    if config.compile:
        network.backbone.compile(dynamic=False)
    if config.freeze:
        if state is not None:  # the backbone that the run began with, whatever its file has become since
            kept = {name: value for name, value in state["network"].items() if name.startswith("backbone.")}
            network.load_state_dict(kept, strict=False)
        keep_features(fabric, network, parts, config, progress)
    loader = training.loader(config, shuffle=True, seed=config.seed, drop_last=True, **share)
    total_steps = config.epochs * -(-len(loader) // config.accumulate)
    module = TaggingModule(network, config, total_steps, weights, fabric.global_rank)

    step = 0 if state is None else state["progress"]["step"]
    if state is None:  # a checkpoint has what the network took from the labels
        learn_labels(network.to(fabric.device), torch.tensor(training.targets()))
    recorder: SilentRecorder = SilentRecorder()
    if fabric.is_global_zero:
        history = [] if state is None else state["progress"]["history"]
        recorder = Recorder(run, step, history, progress, f"{config.model} on {config.data}")
    validation = Validation(
        fabric,
        validating.loader(config, **share),
        training.classes,
        module.loss,
        resolved_precision(config),
        config.shard,
        recorder.validating,
    )
    loop = TrainingLoop(fabric, module, loader, validation, run, recorder, frequencies)
    if state is not None:
        loop.load_state_dict(state)
    if fabric.is_global_zero:
        mark_best_if_last(run, loop.progress)
        write_atomically(run.folder / "network.yaml", network_config.to_yaml())
        run.record(
            state="running",
            failure=None,
            ended=None,
            begun=run.facts.get("begun", now()),
            model=config.model,
            parameters=sum(parameter.numel() for parameter in network.parameters()),
            device=device_name(fabric.device),
            processes=fabric.world_size,
            precision=config.precision,
            command=run.facts.get("command", sys.argv),
            versions=versions(),
        )
        if progress and step:
            going_on = f"going on after step {step} (epoch {loop.progress.epoch + 1})"
            ended = f"{run.folder} has ended, after step {step}; its model is exported again"
            print(ended if loop.is_done() else going_on, file=sys.stderr, flush=True)
    return loop, recorder


def _record_data(run: Run, parts: tuple[Part, Part]) -> None:
    """Record the fingerprints of the data; refuse others than those that the run began with."""
    sources = {"train": parts[0].source, "val": parts[1].source}
    found = {name: source.fingerprint() for name, source in sources.items()}
    contents = {name: source.contents() for name, source in sources.items()}
    known = run.facts.get("fingerprints")
    if known is not None and known != found:
        if run.facts.get("contents") != contents:
            raise RunError(
                f"{run.folder}: the data of {run.config.data} have changed since this run began; "
                "restore them, or train anew"
            )
        print(
            f"note: {run.config.data}: moved, copied or touched since this run began; its labels and a sample of its "
            "images are the same",
            file=sys.stderr,
            flush=True,
        )
    images = {"train": len(parts[0]), "val": len(parts[1])}
    run.record(
        data=run.config.data, fingerprints=found, contents=contents, images=images, classes=len(parts[0].classes)
    )
    run.keep_places()
    _warn_left_out(run.config, [problem for part in parts for problem in part.problems])


def _say_what_was_assumed(part: Part, progress: bool) -> None:
    """Warn of classes that look wrong, before anything is made of them, and note what was assumed about the labels."""
    source = part.source
    if is_rank_zero():
        hidden = [] if part.hidden is None else [str(part.hidden)]
        for note in [*source.assumptions, *hidden] if progress else ():
            print(f"note: {source.name}: {note}", file=sys.stderr, flush=True)
        for doubt in class_doubts(source):
            print(f"warning: {source.name}: {doubt}", file=sys.stderr, flush=True)


def _warn_left_out(config: TrainConfig, found: list[Problem]) -> None:
    """Warn about what could not be used of the data."""
    if found:
        print(f"warning: {left_out(config.data, found)}", file=sys.stderr, flush=True)

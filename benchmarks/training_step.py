"""Time the training loop's steps beside a bare loop, and say where their time goes.

    python benchmarks/training_step.py --config docs/models/coco80.yaml --data coco:PATH --steps 30

The bare loop has one batch in the device's memory, and does nothing but forward pass, loss, backward pass and AdamW.
The difference is what loading, augmentation, EMA, clipping and watching cost. Data smaller than the steps are repeated.
"""

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile, record_function

import contextcaps
from contextcaps.data.loading import Batch
from contextcaps.evaluation.predictions import autocast
from contextcaps.models import CapsuleNetwork
from contextcaps.training.config import TrainConfig
from contextcaps.training.loop import TrainingLoop
from contextcaps.training.step import OpaqueBatch, TaggingModule, parameter_groups

WARM = 10


class Enough(Exception):
    """Ends the training when all steps are timed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="a training's YAML file")
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", help="another head than the file's; without the file's options")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rows", type=int, default=12, help="kernels to list")
    arguments = parser.parse_args()
    config = TrainConfig() if arguments.config is None else TrainConfig.from_yaml(arguments.config)
    changes: dict[str, Any] = {"data": arguments.data, "epochs": 10_000}
    if arguments.model is not None:
        changes |= {"model": arguments.model, "options": {}, "known": 0.0}
    if arguments.batch_size is not None:
        changes["batch_size"] = arguments.batch_size
    config = dataclasses.replace(config, **changes)
    with tempfile.TemporaryDirectory() as folder:
        config = dataclasses.replace(config, out=str(Path(folder, "run")), cache=str(Path(folder, "cache")))
        try:
            with watched(arguments.steps, arguments.rows):
                contextcaps.train(config, progress=False)
        except Enough:
            pass


@contextmanager
def watched(steps: int, rows: int) -> Iterator[None]:
    """Time a training's steps after the first ones, then profile as many, then time the bare loop, and print all."""
    done, started, profiler = 0, 0.0, None
    original = TrainingLoop._train_batch

    def train_batch(loop: TrainingLoop, batch: Any, steps_now: bool) -> None:
        nonlocal done, started, profiler
        if done == WARM:
            started = now(loop)
        if done == WARM + steps:
            report("training loop", (now(loop) - started) / steps, len(batch))
            activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA][: 1 + torch.cuda.is_available()]
            profiler = profile(activities=activities)
            profiler.__enter__()
        original(loop, batch, steps_now)
        done += 1
        if done == WARM + steps + 5:
            now(loop)
            profiler.__exit__(None, None, None)
            show(profiler, rows)
            bare(loop, batch, steps)
            raise Enough

    with (
        patch.object(TrainingLoop, "_train_batch", train_batch),
        labelled(TaggingModule, "_augment", "1 augmentation"),
        labelled(CapsuleNetwork, "features", "2 backbone"),
        labelled(CapsuleNetwork, "from_features", "3 head"),
        labelled(TaggingModule, "loss", "4 loss"),
        labelled(TrainingLoop, "_step", "5 clipping, optimiser, EMA"),
        labelled(TrainingLoop, "_after_step", "6 reading losses"),
    ):
        yield


def labelled(owner: type, name: str, label: str) -> Any:
    """Patch a method so that the profile shows it under a label."""
    original: Callable[..., Any] = getattr(owner, name)

    def method(*arguments: Any, **options: Any) -> Any:
        with record_function(label):
            return original(*arguments, **options)

    return patch.object(owner, name, method)


def now(loop: TrainingLoop) -> float:
    """Return the time when the device has done everything so far."""
    if loop.fabric.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def bare(loop: TrainingLoop, batch: Batch, steps: int) -> None:
    """Time the bare loop on one batch, with the run's own network."""
    network, config, device = loop.network, loop.config, loop.fabric.device
    optimizer = torch.optim.AdamW(parameter_groups(network, 0.01), lr=1e-6, fused=device.type == "cuda" or None)
    batch = OpaqueBatch(batch.to(device)).batch
    present = batch.targets == 1  # [B, J]
    for step in range(WARM + steps):
        if step == WARM:
            started = now(loop)
        with autocast(device, config.precision):  # type: ignore[arg-type]  # resolved by now
            scores = network(batch.images).scores.float().clamp(1e-6, 1 - 1e-6)  # [B, J]
        loss = -torch.where(present, scores, 1 - scores).log().sum(dim=1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    report("bare loop", (now(loop) - started) / steps, len(batch))


def report(what: str, seconds: float, images: int) -> None:
    print(f"{what:14} {1e3 * seconds:8.1f} ms a step, {images / seconds:8,.0f} images/s", flush=True)


def show(profiler: Any, rows: int) -> None:
    """Print the labelled parts and the kernels that take longest, over five steps."""
    events = profiler.key_averages()
    by = "device_time_total" if torch.cuda.is_available() else "cpu_time_total"
    print("five steps, profiled; of a backward pass only the kernels are listed")
    for event in sorted((each for each in events if each.key[:1].isdigit()), key=lambda each: each.key):
        print(f"  {event.key:28} {getattr(event, by) / 5e3:8.2f} ms a step, CPU {event.cpu_time_total / 5e3:8.2f} ms")
    own = by.replace("_total", "").replace("device_time", "self_device_time").replace("cpu_time", "self_cpu_time")
    longest = sorted(events, key=lambda each: getattr(each, f"{own}_total"), reverse=True)
    for event in [each for each in longest if not each.key[:1].isdigit()][:rows]:
        print(f"  {getattr(event, f'{own}_total') / 5e3:8.2f} ms  {event.count // 5:5} times  {event.key[:80]}")


if __name__ == "__main__":
    main()

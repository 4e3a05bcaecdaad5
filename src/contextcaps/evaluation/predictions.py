"""A network's scores for a whole set of images, made by one process or by several, each image exactly once."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.distributed
from torch import Tensor

from contextcaps.data.loading import Batch, FeatureBatch, Loader
from contextcaps.models import CapsuleNetwork, ModelOutput

__all__ = ["Precision", "Predictions", "autocast", "forward_batch", "predict"]

Precision = Literal["fp32", "bf16", "fp16"]


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Scores and true labels of a set of images, in the order of the data, on the CPU."""

    scores: Tensor
    """[n, J], float32."""
    targets: Tensor
    """[n, J], uint8: 1 where the class is present, `UNKNOWN` (255) where that is not known."""
    indices: Tensor
    """[n], int64: of the images in the data, ascending."""
    classes: tuple[str, ...]
    """[J]."""

    def __len__(self) -> int:
        return len(self.scores)


def predict(
    network: CapsuleNetwork,
    loader: Loader,
    classes: tuple[str, ...],
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    tell: Callable[[int], None] = lambda count: None,
    in_step: bool = False,
    known: Callable[[Tensor], Tensor] | None = None,
) -> Predictions:
    """Score every image that a loader gives; with several processes, all of them have the whole afterwards.

    Processes may have different numbers of batches: nothing is exchanged before the end, unless `in_step`.

    Args:
        network: its mode (training or evaluation) is left as it was.
        loader: this process's share of the images, without `drop_last`.
        classes: [J], their names.
        device: where the network is.
        precision: of the computation; scores are float32 in any case.
        tell: called with the number of images done since its last call.
        in_step: let all processes call the network equally often, as they must where they share its weights.
        known: from the indices [B] of some images in the data to what the network is told of them, [B, J].
    """
    was_training = network.training
    network.eval()
    scores: list[Tensor] = []
    targets: list[Tensor] = []
    indices: list[Tensor] = []
    try:
        with torch.no_grad() if in_step else torch.inference_mode(), autocast(device, precision):
            for batch in loader:
                places = torch.from_numpy(batch.indices)  # [B]
                told = None if known is None else known(places).to(device)  # [B, J]
                scores.append(forward_batch(network, batch, told).scores.float().cpu())  # [B, J]
                targets.append(batch.targets)
                indices.append(places)
                tell(len(batch))
            if in_step:
                config = network.config
                blank = torch.zeros(1, config.in_channels, *config.image_size, device=device)  # [1, C, H, W]
                for _ in range(_most_batches(loader) - len(scores)):
                    network(blank)
    finally:
        network.train(was_training)
    width = len(classes)
    own = (
        torch.cat([torch.empty(0, width), *scores]).clone(),  # [n, J]
        torch.cat([torch.empty(0, width, dtype=torch.uint8), *targets]),  # [n, J]
        torch.cat([torch.empty(0, dtype=torch.int64), *indices]),  # [n]
    )
    everything = _gather(own)
    joined = [torch.cat(parts) for parts in zip(*everything, strict=True)]
    order = joined[2].argsort()
    return Predictions(joined[0][order], joined[1][order], joined[2][order], classes)


def forward_batch(network: CapsuleNetwork, batch: Batch | FeatureBatch, known: Tensor | None = None) -> ModelOutput:
    """Run a network on a batch of images, or its head on a batch of its backbone's features, on the network's device.

    Args:
        network: what is run.
        batch: images or features, on any device.
        known: what the network is told of them, [B, J], on its device.
    """
    device = network.pixel_mean.device
    if isinstance(batch, FeatureBatch):
        return network.from_features(batch.features.to(device, non_blocking=True), known=known)
    return network(batch.images.to(device, non_blocking=True), known=known)


def autocast(device: torch.device | str, precision: Precision) -> torch.autocast:
    """Return a context of mixed precision, or of none for fp32."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    return torch.autocast(torch.device(device).type, dtype=dtype, enabled=precision != "fp32")


def _most_batches(loader: Loader) -> int:
    """Return the number of batches of the process that has most."""
    return math.ceil(math.ceil(loader.count / loader.world_size) / loader.batch_size)


def _gather(own: tuple[Tensor, Tensor, Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return this process's part and those of all others."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return [own]
    everything: list = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everything, own, group=_cpu_group())
    return everything


@functools.cache
def _cpu_group() -> torch.distributed.ProcessGroup | None:
    """Return a process group over main memory: the scores of all images need not fit on a GPU."""
    return torch.distributed.new_group(backend="gloo")

"""A network's scores for a whole set of images, made by one process or by several, each image exactly once."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import torch
import torch.distributed
from torch import Tensor, nn

from contextcaps.data.loading import Loader

__all__ = ["Precision", "Predictions", "autocast", "predict"]

Precision = Literal["fp32", "bf16", "fp16"]


@dataclasses.dataclass(frozen=True)
class Predictions:
    """What a network says of a set of images, and what is true; in the order of the data, on the CPU."""

    scores: Tensor
    """[n, J], float32."""
    targets: Tensor
    """[n, J], uint8: 1 where the class is present."""
    indices: Tensor
    """[n], int64: of the images in the data, ascending."""
    classes: tuple[str, ...]
    """[J]."""

    def __len__(self) -> int:
        return len(self.scores)


def predict(
    network: nn.Module,
    loader: Loader,
    classes: tuple[str, ...],
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    tell: Callable[[int], None] = lambda count: None,
) -> Predictions:
    """Score every image that a loader gives; with several processes, all of them have the whole afterwards.

    Processes may have different numbers of batches: nothing is exchanged before the end.

    Args:
        network: gives an object with `scores` [B, J] for images [B, C, H, W]; its mode is left as it was.
        loader: this process's share of the images, without `drop_last`.
        classes: [J], their names.
        device: where the network is.
        precision: of the computation; scores are float32 in any case.
        tell: called with the number of images done since its last call.
    """
    was_training = network.training
    network.eval()
    scores: list[Tensor] = []
    targets: list[Tensor] = []
    indices: list[Tensor] = []
    try:
        with torch.inference_mode(), autocast(device, precision):
            for batch in loader:
                images = batch.images.to(device, non_blocking=True)
                scores.append(network(images).scores.float().cpu())  # [B, J]
                targets.append(batch.targets)
                indices.append(torch.from_numpy(batch.indices))
                tell(len(batch))
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


def autocast(device: torch.device | str, precision: Precision) -> torch.autocast:
    """Mixed precision for a block, or none for fp32."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    return torch.autocast(torch.device(device).type, dtype=dtype, enabled=precision != "fp32")


def _gather(own: tuple[Tensor, Tensor, Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """This process's part and those of all others."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return [own]
    everything: list = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everything, own)
    return everything

"""Score the images of a labelled source on Ray, for `contextcaps evaluate`: by the same blocks as a corpus is tagged.

The network and the source go to the workers as they are here, so that no machine can have others. Metrics are computed
afterwards, where the command runs.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contextcaps.corpus.cluster import connected
from contextcaps.corpus.running import run_blocks, store_bytes, what_failed
from contextcaps.data import Source
from contextcaps.data.decoding import decode_samples
from contextcaps.data.problems import OnBad, Problems
from contextcaps.evaluation.predictions import Precision, autocast
from contextcaps.models import CapsuleNetwork
from contextcaps.training.config import TrainConfig
from contextcaps.training.data import Part
from contextcaps.training.processes import resolved_precision
from contextcaps.version import __version__

__all__ = ["OnRay"]


@dataclasses.dataclass(frozen=True)
class OnRay:
    """Computes scores on Ray: the `elsewhere` of `contextcaps.evaluate`.

    A block has the images of a batch of one process, so scores are equal to the bit where both compute with as many
    threads on the same kind of processor.
    """

    address: str | None = None
    """Where a Ray cluster runs; None starts one on this machine, for this evaluation."""
    workers: int | None = None
    """Actors that hold the model; by default one for each GPU, or for each core where there is none."""
    cores: int | None = None
    """Cores of a cluster that is started."""

    def __call__(
        self, network: CapsuleNetwork, part: Part, config: TrainConfig, tell: Callable[[int], None]
    ) -> tuple[Tensor, Tensor]:
        """Return scores [n, J] and the indices [n] of their images, in any order.

        Raises:
            DataError: an image cannot be read, and such images are not to be skipped.
            OSError: no cluster can be reached, or its workers died again and again.
        """
        height, width = (part.size, part.size) if isinstance(part.size, int) else part.size
        of_image = 3 * height * width
        blocks = range(-(-len(part) // config.batch_size))
        memory = store_bytes(config.batch_size * of_image, self.workers or self.cores or os.cpu_count() or 1)
        on_cpu = config.accelerator == "cpu"
        with connected(self.address, memory, self.cores) as ray:
            decode = _Decode(ray.put(part.source), len(part), config.batch_size, (height, width), config.on_bad)
            of_actor = (network.cpu(), resolved_precision(config), on_cpu, __version__)
            found = []
            try:
                for batch in run_blocks(
                    ray,
                    decode,
                    _Predict,
                    of_actor,
                    blocks,
                    rows=config.batch_size,
                    of_image=of_image,
                    workers=self.workers,
                    on_cpu=on_cpu,
                ):
                    found.append((batch["scores"], batch["index"]))
                    tell(len(batch["index"]))
            except ray.exceptions.RayError as error:
                cause = what_failed(error, ray)
                if isinstance(cause, ValueError | ImportError):  # a DataError is a ValueError
                    raise cause from None
                what = (str(cause).strip().splitlines() or [type(cause).__name__])[-1]
                raise OSError(f"--engine ray: {what}") from None
        if not found:
            raise ValueError(f"{part.source.name}: none of its {len(part):,} images can be read")
        scores, indices = (torch.from_numpy(np.concatenate(each)) for each in zip(*found, strict=True))
        lost = config.on_bad == "stop" and len(indices) < len(part)
        if lost or len(indices.unique()) != len(indices):
            what = "are missing" if lost else "came twice"
            raise OSError(f"--engine ray: images {what}; this is a mistake of contextcaps: please report it")
        return scores.float(), indices


@dataclasses.dataclass(frozen=True)
class _Decode:
    """Decodes a block, to columns index, pixels."""

    source: Any
    """Reference to it in Ray's object store."""
    count: int
    batch_size: int
    size: tuple[int, int]
    on_bad: OnBad

    def __call__(self, number: int) -> dict[str, np.ndarray]:
        source = _fetched(self.source)
        first = number * self.batch_size
        decoded = decode_samples(source, np.arange(first, min(first + self.batch_size, self.count)), self.size)
        problems = Problems(source.name, self.on_bad)
        problems.found += decoded.bad
        problems.settle()
        return {"index": decoded.indices, "pixels": decoded.images}  # [n], [n, 3, H, W]


@functools.lru_cache(1)
def _fetched(reference: Any) -> Source:
    """Return what a reference stands for; a process fetches it once."""
    import ray

    source: Source = ray.get(reference)
    return source


class _Predict:
    """An actor: holds the network, scores blocks.

    Args:
        network: the network, on the CPU.
        precision: of the computation.
        on_cpu: use no GPU.
        version: of contextcaps where the command runs.
    """

    def __init__(self, network: CapsuleNetwork, precision: Precision, on_cpu: bool, version: str) -> None:
        if version != __version__:
            raise ValueError(
                f"machine {os.uname().nodename}: has contextcaps {__version__}, the command's machine {version}; "
                "install the same on both"
            )
        self.device = torch.device("cuda" if torch.cuda.is_available() and not on_cpu else "cpu")
        self.network, self.precision = network.to(self.device).eval(), precision

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not len(batch["index"]):
            return {"index": batch["index"], "scores": np.zeros((0, self.network.config.num_classes), np.float32)}
        pixels = np.array(batch["pixels"])  # a copy: what Ray gives is read-only
        images = torch.from_numpy(pixels).to(self.device)  # [B, 3, H, W]
        with torch.inference_mode(), autocast(self.device, self.precision):
            return {"index": batch["index"], "scores": self.network(images).scores.float().cpu().numpy()}  # [B, J]

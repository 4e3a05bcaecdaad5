"""Scores by PyTorch: a network of this package, on whatever device."""

import hashlib
import os
from typing import cast

import numpy as np
import torch
from torch import Tensor

from contextcaps.models.decomposition import Decomposition, decompose, require_explainable
from contextcaps.models.network import CapsuleNetwork
from contextcaps.models.parts import LogitParts
from contextcaps.out_of_memory import memory_for

__all__ = ["TorchScorer", "checked_device", "to_grey"]

_LUMA = (0.299, 0.587, 0.114)  # red, green and blue in grey (ITU-R 601, as in Pillow)


def _compute_alone() -> None:
    """Let a forked process compute in one thread: OpenMP would wait for ever for threads that are its parent's."""
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compute_alone)


class TorchScorer:
    """Scores images by a network, which is put into evaluation mode; a copy of its backbone computes.

    The copy is made anew where the weights have gone to another device or precision.
    """

    def __init__(self, network: CapsuleNetwork, device: str | torch.device = "auto") -> None:
        self.network = network.to(checked_device(device)).eval()
        self.config = network.config
        self._folded = self.network.folded()  # gives the same scores in less time

    @property
    def device(self) -> torch.device:
        """The device that computes: that of the network's weights."""
        return self.network.pixel_mean.device

    def scores(self, images: np.ndarray | Tensor, known: np.ndarray | None = None) -> np.ndarray:
        images = self._ready(images)
        with torch.inference_mode(), memory_for(len(images), self.device):
            told = None if known is None else torch.from_numpy(known).to(self.device).expand(len(images), -1)  # [B, J]
            return self._folded(images, known=told).scores.float().cpu().numpy()  # [B, J]

    def features(self, images: np.ndarray | Tensor) -> Tensor:
        """Return the backbone's features [B, C', H', W'], on its device, of images as for `scores`."""
        return self._folded.features(self._ready(images))

    def parts(self, image: np.ndarray, *known: np.ndarray | None) -> list[LogitParts]:
        with torch.inference_mode():
            features = self.features(image[None])  # [1, C, H, W]
        return self.parts_of(features, *(known or (None,)))

    def parts_of(self, features: Tensor, *known: np.ndarray | None) -> list[LogitParts]:
        """Return the parts of the logits of one image, from its features [1, C, H, W], for each set of known labels."""
        with torch.inference_mode():
            told = [None if each is None else torch.from_numpy(each).to(self.device)[None] for each in known]  # [1, J]
            return [_of_first(found) for found in decompose(self.network, features, *told)]

    def compile(self) -> None:
        """Let `torch.compile` compute the scores; the first call and each new batch size then take long."""
        self._folded = cast(CapsuleNetwork, torch.compile(self._folded, dynamic=False))

    def require_explainable(self) -> None:
        require_explainable(self.config)

    def fingerprint(self) -> bytes:
        digest = hashlib.sha256()
        for tensor in self.network.state_dict().values():
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.digest()

    def _ready(self, images: np.ndarray | Tensor) -> Tensor:
        """Return images [B, 3, H, W] as the network takes them, with a folded network on the same device."""
        if _place(self._folded) != _place(self.network):
            self._folded = self.network.folded()
        tensor = (torch.from_numpy(images) if isinstance(images, np.ndarray) else images).to(self.device)
        return to_grey(tensor) if self.config.in_channels == 1 else tensor


def to_grey(images: Tensor) -> Tensor:
    """Return the luma [B, 1, H, W], 0…1, of bytes [B, 3, H, W]."""
    luma = torch.tensor(_LUMA, device=images.device)[:, None, None]  # [3, 1, 1]
    return (images * luma).sum(1, keepdim=True) / 255


def _of_first(found: Decomposition) -> LogitParts:
    """Return the parts of the first image of a batch as arrays."""
    lengths = found.lengths
    return LogitParts(
        _array(found.scores),
        _array(found.logits),
        _array(found.evidence),
        None if found.branch is None else _array(found.branch),
        None if found.messages is None else _array(found.messages),
        {name: _array(value) for name, value in found.constants.items()},
        None if lengths is None else _array(lengths.length),
        None if lengths is None else _array(lengths.capsules),
        None if lengths is None else _array(lengths.bias),
    )


def _array(values: Tensor) -> np.ndarray:
    return values[0].float().cpu().numpy()


def _place(network: CapsuleNetwork) -> tuple[torch.device, torch.dtype] | None:
    """Return the device and the type of a backbone's weights; None where it has none."""
    return next(((weight.device, weight.dtype) for weight in network.backbone.parameters()), None)


def checked_device(device: str | torch.device) -> torch.device:
    """Return the device of this name; refuse one that is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        chosen = torch.device("meta")
    if chosen.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f"device: expected auto, cpu, cuda or cuda:NUMBER, got {str(device)!r}")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if chosen.type == "cuda" and (chosen.index or 0) >= found:
        raise ValueError(f"device: {chosen} is not there (GPUs that torch can use: {found}); use cpu or auto")
    return chosen

"""Draw the labels of an image that are given: at random in training, the same for every model in an evaluation."""

import numpy as np
import torch
from torch import Tensor

from contextcaps.data.unknown import is_unknown

__all__ = ["draw_given", "known_labels", "loss_weights", "reveal"]


def known_labels(targets: Tensor, given: Tensor) -> Tensor:
    """Return known labels [n, J], float32, as the network takes them: targets [n, J] where given [n, J], else NaN.

    A label that the data do not know cannot be given.
    """
    return torch.where(given & ~is_unknown(targets), targets.float(), torch.nan)


def reveal(targets: Tensor, most: float) -> Tensor:
    """Draw which labels of a training batch are given, [B, J] bool, from torch's global generator.

    Half of the images, at random, get none, since a network is usually given none and has to stay good at that. Each of
    the others gets a share drawn uniformly from 0 to `most`, so that one network serves all shares; its labels are
    drawn uniformly among present and absent ones. At least one label of an image is always left to be predicted, if the
    data know one.

    Args:
        targets: [B, J]; unknown labels are not given.
        most: the highest share, below 1.
    """
    images, classes = targets.shape
    # On the CPU wherever the batch is, so that a run draws the same on every device.
    shares = torch.rand(images, 1) * most * (torch.rand(images, 1) < 0.5)  # [B, 1]
    drawn = torch.rand(images, classes)  # [B, J]
    if targets.is_cuda:  # without page-locked memory, the copy would wait for the GPU
        drawn = drawn.pin_memory()
    unknown = is_unknown(targets)  # [B, J]
    drawn = drawn.to(targets.device, non_blocking=True).masked_fill(unknown, torch.inf)  # [B, J]
    ranks = drawn.argsort(dim=1).argsort(dim=1)  # [B, J], those of unknown labels last
    return ranks < (shares.to(targets.device) * (~unknown).sum(dim=1, keepdim=True)).floor()  # [B, J]


def loss_weights(given: Tensor, unknown: Tensor) -> Tensor:
    """Return loss weights [B, J] that count only the labels left to be predicted, as much as all that are known.

    Args:
        given: [B, J], bool: labels that were given.
        unknown: [B, J], bool: labels that the data do not know; none of them is given.
    """
    left = (~(given | unknown)).float()  # [B, J]
    known = (~unknown).sum(dim=1, keepdim=True)  # [B, 1]
    return left * (known * left.sum(dim=1, keepdim=True).clamp_min(1).reciprocal())


def draw_given(indices: Tensor, classes: int, share: float, seed: int) -> Tensor:
    """Draw which labels are given in an evaluation, [n, J] bool: round(share · J) of each image's J labels.

    The draw depends on the image's index in the data and the seed, not on the model; labels given at a small share are
    also given at each larger one.

    Args:
        indices: [n], indices of the images in the data.
        classes: J.
        share: share of the labels, from 0 to 1.
        seed: seed of the draw.
    """
    rows = int(indices.max()) + 1 if len(indices) else 0
    drawn = np.random.default_rng(seed).random((rows, classes))[indices.numpy()]  # [n, J]
    ranks = torch.from_numpy(drawn.argsort(axis=1).argsort(axis=1))  # [n, J]
    return ranks < round(share * classes)

"""Which label would settle most of the others, if it were known: the expected drop of their entropy.

With P(j) the score of a class and h(p) = −p log₂ p − (1 − p) log₂ (1 − p) its entropy in bits, the answer to whether
class c is present is expected to take from the other classes

    drop_c = Σ_{j≠c} h(P(j)) − P(c) · Σ_{j≠c} h(P(j | c present)) − (1 − P(c)) · Σ_{j≠c} h(P(j | c absent)),

all given what is known already. A class that is uncertain, but says nothing of others, is not worth a question.
"""

import math

import torch
from torch import Tensor

from contextcaps.models.network import CapsuleNetwork
from contextcaps.models.told import Told

__all__ = ["binary_entropy", "expected_drops", "expected_drops_told"]


def binary_entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy in bits of each probability of a yes-or-no variable, of the same shape.

    >>> binary_entropy(torch.tensor([0.0, 0.5, 1.0]))
    tensor([0., 1., 0.])
    """
    return (torch.special.entr(probabilities) + torch.special.entr(1 - probabilities)) / math.log(2)


@torch.no_grad()
def expected_drops(network: CapsuleNetwork, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the expected drop of each class, in bits, and its score with the labels told; both [B, J].

    A drop is NaN where the label is known already. It may be a little below zero: the mean field is no exact inference.

    Args:
        network: in evaluation mode.
        features: [B, C, H, W], that `network.features` gave.
        labels: [B, J], 1 for present, 0 for absent, NaN for what is not known and may be asked.

    Raises:
        ValueError: the network cannot be told labels.
    """
    network.config.require_takes_known()
    return expected_drops_told(Told(network, features), labels)


def expected_drops_told(told: Told, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same as `expected_drops` of images that are ready to be told labels."""
    plain = told.scores(labels.unsqueeze(1))[:, 0]  # [B, J]
    entropy = binary_entropy(plain)  # [B, J], 0 where a label is known
    after = []
    for tile in told.tiles(labels.shape[1]):
        each = torch.arange(len(tile), device=tile.device)
        answered = labels.unsqueeze(1).repeat(1, len(tile), 1)  # [B, T, J]
        expected = torch.zeros_like(plain[:, tile])  # [B, T]
        for answer, chance in ((1.0, plain[:, tile]), (0.0, 1 - plain[:, tile])):
            answered[:, each, tile] = answer
            expected += chance * binary_entropy(told.scores(answered)).sum(dim=2)  # [B, T]; the class itself has 0
        after.append(expected)
    drops = entropy.sum(dim=1, keepdim=True) - entropy - torch.cat(after, dim=1)  # [B, J]
    return drops.masked_fill(~labels.isnan(), math.nan), plain

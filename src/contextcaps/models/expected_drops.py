"""Which label would settle most of the others, if it were known: the expected drop of their entropy.

With h(p) = −p log₂ p − (1 − p) log₂ (1 − p) the entropy of a score in bits, and P(j | c), P(j | not c) the scores of
the other classes with either answer told, the answer to whether class c is present is expected to take from them

    drop_c = Σ_{j≠c} h(P̄(j)) − P(c) · Σ_{j≠c} h(P(j | c)) − (1 − P(c)) · Σ_{j≠c} h(P(j | not c)),
    P̄(j) = P(c) · P(j | c) + (1 − P(c)) · P(j | not c),

all given what is known already: the mutual information of c and each other class, summed. It is never below zero. P̄ is
what the score would be before the answer, if the mean field were exact; the score itself would count it as settled when
telling any label at all makes the model surer. A class that is uncertain, but says nothing of others, settles nothing.
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

    A drop is NaN where the label is known already.

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
    found = []
    for tile in told.tiles(labels.shape[1]):
        each = torch.arange(len(tile), device=tile.device)
        answered = labels.unsqueeze(1).repeat(1, len(tile), 1)  # [B, T, J]
        answered[:, each, tile] = 1
        if_present = told.scores(answered)  # [B, T, J]
        answered[:, each, tile] = 0
        if_absent = told.scores(answered)  # [B, T, J]
        chance = plain[:, tile].unsqueeze(2)  # [B, T, 1]
        drop = binary_entropy(chance * if_present + (1 - chance) * if_absent)  # [B, T, J]
        drop -= chance * binary_entropy(if_present) + (1 - chance) * binary_entropy(if_absent)
        drop[:, each, tile] = 0
        found.append(drop.sum(dim=2))  # [B, T]
    return torch.cat(found, dim=1).masked_fill(~labels.isnan(), math.nan), plain

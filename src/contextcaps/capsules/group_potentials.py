"""Potentials of higher order between the classes: hidden units that read all classes and send messages to each."""

from typing import NamedTuple

import torch
from torch import Tensor

from contextcaps.capsules.guards import upcast

__all__ = ["Groups", "group_messages"]


class Groups(NamedTuple):
    """Weights of the hidden units.

    Unit h is r_h = max(0, bias_h + Σ_j sent_j · inward[j, h] + Σ_j given_j · inward[J + j, h]), where given_j is 1 for
    a known label and 0 otherwise; its message to class j is (r_h − max(0, bias_h)) · outward[h, j], which is zero where
    nothing is sent and no label is known.
    """

    inward: Tensor
    """[2J, h]."""
    bias: Tensor
    """[h]."""
    outward: Tensor
    """[h, J]."""


def group_messages(sent: Tensor, given: Tensor | None, groups: Groups) -> Tensor:
    """Return the messages [B, J] of the hidden units.

    Args:
        sent: [B, J], each class's probability minus its prior.
        given: [B, J], true where a label is known; None where none is.
        groups: the units' weights.
    """
    inward, bias, outward = map(upcast, groups)  # [2J, h], [h], [h, J]
    hidden = sent @ inward[: sent.shape[1]] + bias  # [B, h]
    if given is not None:
        hidden = hidden + given.to(sent) @ inward[sent.shape[1] :]  # [B, h]
    return (torch.relu(hidden) - torch.relu(bias)) @ outward  # [B, J]

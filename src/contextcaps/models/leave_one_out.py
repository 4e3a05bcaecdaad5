"""Score each class with all other labels told: what the image and the other labels say of a label, without it."""

import math

import torch
from torch import Tensor

from contextcaps.models.network import CapsuleNetwork
from contextcaps.models.told import Told

__all__ = ["leave_one_out", "leave_one_out_told"]


@torch.no_grad()
def leave_one_out(network: CapsuleNetwork, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return each class's score with nothing told, and with all other labels told, both [B, J], float32 at least.

    The second is P(class j | image, labels of all classes but j), calibrated where the network is. The same numbers as
    J calls of the network, each with one label left out; but the backbone, and a head without labels, run once for each
    image. Only the field, or a head that is told, runs for each class: several classes at once, as memory allows.

    A network that cannot be told labels gives its plain scores twice.

    Args:
        network: in evaluation mode.
        features: [B, C, H, W], that `network.features` gave.
        labels: [B, J], 1 for present, 0 for absent, NaN for what is not known and so never told.
    """
    if not network.config.takes_known:
        scores = network.from_features(features).scores.float()
        return scores, scores
    told = Told(network, features)
    alone = told.scores(torch.full_like(labels, math.nan).unsqueeze(1))[:, 0]  # [B, J]
    return alone, leave_one_out_told(told, labels)


def leave_one_out_told(told: Told, labels: Tensor) -> Tensor:
    """Return the scores with all other labels told, [B, J], of images that are ready to be told labels."""
    found = []
    for tile in told.tiles(labels.shape[1]):
        each = torch.arange(len(tile), device=tile.device)
        others = labels.unsqueeze(1).repeat(1, len(tile), 1)  # [B, T, J]
        others[:, each, tile] = math.nan
        found.append(told.scores(others)[:, each, tile])  # [B, T]
    return torch.cat(found, dim=1)  # [B, J]

"""Score each class with all other labels told: what the image and the other labels say of a label, without it."""

import math

import torch
from torch import Tensor

from contextcaps.capsules import DecisionField, score_logits, unchecked
from contextcaps.models.calibration import calibrate
from contextcaps.models.head_base import ModelOutput
from contextcaps.models.network import CapsuleNetwork

__all__ = ["leave_one_out"]

_NUMBERS_AT_ONCE = 1 << 24
"""Numbers of a tile of told labels, 64 MiB; a field has a few tensors of that size."""
_IMAGES_AT_ONCE = 256
"""Images whose features a head that is told takes at once: it keeps attention among all of its tokens."""


@torch.no_grad()
def leave_one_out(network: CapsuleNetwork, features: Tensor, labels: Tensor) -> Tensor:
    """Return the score of each class where all other labels are told, [B, J], float32 at least.

    score_j = P(class j | image, labels of all classes but j), calibrated where the network is. The same numbers as J
    calls of the network, each with one label left out; but the backbone, and a head without labels, run once for each
    image. Only the field, or a head that is told, runs for each class: several classes at once, as memory allows.

    A network that cannot be told labels gives its plain scores.

    Args:
        network: in evaluation mode.
        features: [B, C, H, W], that `network.features` gave.
        labels: [B, J], 1 for present, 0 for absent, NaN for what is not known and so never told.
    """
    if not network.config.takes_known:
        return network.from_features(features).scores.float()
    if network.config.head_takes_known:
        return _by_head(network, features, labels)
    assert network.field is not None
    with unchecked():
        output = network.head(features.to(network.pixel_mean.dtype))
        logits = score_logits(output.scores) if output.logits is None else output.logits  # [B, J]
        pooled = None if network.field.global_branch is None else features.mean(dim=(2, 3))  # [B, C]
        found = _by_field(network.field, network.field.unary(logits, pooled), labels)  # [B, J]
        scores = torch.sigmoid(found)
        calibration = network.config.calibration
        return scores if calibration is None else calibrate(ModelOutput(scores, None, logits=found), calibration).scores


def _by_field(field: DecisionField, unary: Tensor, labels: Tensor) -> Tensor:
    """Return the logits [B, J] of each class after the field; `unary` and `labels` are [B, J]."""
    images, classes = unary.shape
    at_once = max(1, _NUMBERS_AT_ONCE // (images * classes))  # T
    found = []
    for tile in torch.arange(classes, device=unary.device).split(at_once):
        told = _without(labels, tile).flatten(0, 1)  # [B·T, J]
        logits = field.correct(unary.repeat_interleave(len(tile), 0), told).logits  # [B·T, J]
        found.append(_own(logits, images, tile))
    return torch.cat(found, dim=1)  # [B, J]


def _by_head(network: CapsuleNetwork, features: Tensor, labels: Tensor) -> Tensor:
    """Return the scores [B, J] of each class of a network whose head is told."""
    images, classes = labels.shape
    found = []
    for tile in torch.arange(classes, device=features.device).split(max(1, _IMAGES_AT_ONCE // images)):
        told = _without(labels, tile).flatten(0, 1)  # [B·T, J]
        scores = network.from_features(features.repeat_interleave(len(tile), 0), known=told).scores  # [B·T, J]
        found.append(_own(scores.float(), images, tile))
    return torch.cat(found, dim=1)  # [B, J]


def _without(labels: Tensor, tile: Tensor) -> Tensor:
    """Return labels [B, J] once for each class of a tile [T], without that class, [B, T, J]."""
    told = labels.unsqueeze(1).repeat(1, len(tile), 1)  # [B, T, J]
    told[:, torch.arange(len(tile), device=tile.device), tile] = math.nan
    return told


def _own(values: Tensor, images: int, tile: Tensor) -> Tensor:
    """Return of values [B·T, J] those of each row's own class, [B, T]."""
    each = values.unflatten(0, (images, len(tile)))  # [B, T, J]
    return each[:, torch.arange(len(tile), device=tile.device), tile]  # [B, T]

"""Reconstruction decoder: the image back from the decision capsules, as a regulariser and as a picture.

Sabour et al. 2017, Section 4.1: the capsules of all other classes are masked out, and three fully connected layers
(512, 1024, pixels) rebuild the image. With several labels the capsules of all present classes stay.
"""

import itertools

import torch
from torch import Tensor, nn

from contextcaps.capsules.guards import require_count, require_same_dtype, require_tensor, require_values

__all__ = ["mask_decisions", "ReconstructionDecoder"]


def mask_decisions(decisions: Tensor, present: Tensor) -> Tensor:
    """Keep the decision capsules of the present classes and set the others to zero.

    Args:
        decisions: [B, J, I].
        present: [B, J], 1 (or True) where the class counts as present: the targets in training, later the scores
            above a threshold.
    """
    batch, classes, _ = require_tensor("decisions", decisions, "B J I")
    shape = list(present.shape) if isinstance(present, Tensor) else type(present).__name__
    if shape != [batch, classes]:
        raise ValueError(f"present: expected shape [B={batch}, J={classes}], got {shape}")
    if present.is_floating_point():
        require_values("present", present)
    return decisions * present.to(decisions.dtype).unsqueeze(-1)  # [B, J, I]


class ReconstructionDecoder(nn.Module):
    """A decoder from decision capsules [B, J, I] and present classes [B, J] to images [B, C, H, W] between 0 and 1.

    Args:
        classes: J.
        attributes: I.
        image_shape: (C, H, W) of the image to rebuild.
        hidden: sizes of the hidden layers.
    """

    def __init__(
        self, classes: int, attributes: int, image_shape: tuple[int, int, int], hidden: tuple[int, ...] = (512, 1024)
    ) -> None:
        super().__init__()
        self.classes, self.attributes, self.image_shape = classes, attributes, image_shape
        channels, height, width = (require_count("image_shape", size) for size in image_shape)
        sizes = [
            require_count("classes", classes) * require_count("attributes", attributes),
            *(require_count("hidden", size) for size in hidden),
        ]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        layers += [nn.Linear(sizes[-1], channels * height * width), nn.Sigmoid()]
        self.layers = nn.Sequential(*layers)

    def forward(self, decisions: Tensor, present: Tensor) -> Tensor:
        require_tensor("decisions", decisions, "B J I", J=self.classes, I=self.attributes)
        require_same_dtype(decisions=decisions, weight=next(self.layers.parameters()))
        kept = mask_decisions(decisions, present).flatten(1)  # [B, J·I]
        return torch.unflatten(self.layers(kept), 1, self.image_shape)  # [B, C, H, W]

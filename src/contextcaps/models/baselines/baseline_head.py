"""The base of the baseline heads: features in, a logit for each class out, and no capsules in between."""

import abc
from typing import NamedTuple

import torch
from torch import Tensor

from contextcaps.capsules.guards import upcast
from contextcaps.models.config import ModelConfig
from contextcaps.models.head_base import Head, ModelOutput

__all__ = ["BaselineHead", "PositionParts", "max_pooled_parts", "tokens"]


class PositionParts(NamedTuple):
    """Parts that a baseline head's logits [B, J] are the sum of."""

    cells: Tensor
    """[B, J, H, W], the part of each position of the features."""
    bias: Tensor | None = None
    """[J], the part that is the same for all images; None for none."""


class BaselineHead(Head):
    """A head that scores the classes without capsules.

    Args:
        config: the network's configuration.
        in_channels: C, channels of the feature map.
        grid: (H, W) of the feature map, at the configuration's image size.
    """

    takes_any_size = True
    width: int = 0
    """d, width of its queries or label embeddings; 0 where it has none."""

    def __init__(self, config: ModelConfig, in_channels: int, grid: tuple[int, int]) -> None:
        super().__init__(config, grid)
        self.in_channels = in_channels

    def savings(self) -> list[str]:
        return [f"a smaller {self.config.head}.width"] if self.width else []

    @abc.abstractmethod
    def logits(self, features: Tensor) -> Tensor:
        """Return the logits [B, J] of features [B, C, H, W]."""

    def parts(self, features: Tensor) -> PositionParts:
        """Divide the logits of features [B, C, H, W] over their positions, exactly; only for heads that can."""
        raise NotImplementedError(f"the head {self.config.head} has no exact parts by position")

    def forward(self, features: Tensor, return_intermediates: bool = False) -> ModelOutput:
        return self.output(self.logits(features), return_intermediates)

    def output(self, logits: Tensor, return_intermediates: bool) -> ModelOutput:
        """Return the output that has these logits [B, J]; refuse intermediates."""
        if return_intermediates:
            raise ValueError(
                f"return_intermediates: expected False, as the head {self.config.head} has no capsules to show"
            )
        # A half-precision sigmoid is exactly 1 from a logit of 6 on.
        logits = upcast(logits)  # [B, J]
        return ModelOutput(scores=logits.sigmoid(), decisions=None, logits=logits)


def tokens(features: Tensor) -> Tensor:
    """Turn features [B, C, H, W] into a sequence of grid cells, [B, H·W, C]."""
    return features.flatten(2).transpose(1, 2)


def max_pooled_parts(features: Tensor, classifiers: Tensor) -> Tensor:
    """Divide classifiers · max-pooled features over positions: a channel's part lies where the channel is largest.

    Args:
        features: [B, C, H, W].
        classifiers: [J, C].

    Returns:
        [B, J, H, W]; of several equal maxima the first.
    """
    flat = features.flatten(2)  # [B, C, H·W]
    largest, places = flat.max(dim=2, keepdim=True)  # [B, C, 1]
    kept = torch.zeros_like(flat).scatter(2, places, largest)  # [B, C, H·W], one position of each channel
    return torch.einsum("bcp,jc->bjp", kept, classifiers.to(kept.dtype)).unflatten(2, features.shape[2:])


def start_embedding(count: int, width: int) -> Tensor:
    """Draw [count, width] numbers of unit variance, as `nn.Embedding` starts."""
    return torch.randn(count, width)

"""What the rival heads share: features in, a logit for each class out, and no capsules in between."""

import abc

import torch
from torch import Tensor, nn

from contextcaps.capsules.guards import upcast
from contextcaps.models.config import ModelConfig
from contextcaps.models.head import ModelOutput

__all__ = ["RivalHead", "tokens"]


class RivalHead(nn.Module, abc.ABC):
    """A head that scores the classes without capsules.

    Args:
        config: the network's configuration.
        in_channels: C, channels of the feature map.
        grid: (H, W) of the feature map, at the configuration's image size.
    """

    takes_any_size = True
    """No weight of it belongs to a grid position."""

    def __init__(self, config: ModelConfig, in_channels: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.config, self.in_channels, self.grid = config, in_channels, grid

    @abc.abstractmethod
    def logits(self, features: Tensor) -> Tensor:
        """[B, J], of features [B, C, H, W]."""

    @abc.abstractmethod
    def steps(self) -> list[tuple[str, tuple[int, ...], nn.Module | nn.Parameter]]:
        """The way from features to logits: the name of each step, the shape that it gives for one image, its weights.

        Every weight is in exactly one step.
        """

    def forward(self, features: Tensor, return_intermediates: bool = False) -> ModelOutput:
        if return_intermediates:
            raise ValueError(
                f"return_intermediates: expected False, as head {self.config.head!r} has no capsules to show"
            )
        # A half-precision sigmoid is exactly 1 from a logit of 6 on.
        logits = upcast(self.logits(features))  # [B, J]
        return ModelOutput(scores=logits.sigmoid(), decisions=None, logits=logits)

    def learn_labels(self, targets: Tensor) -> None:
        """Take what the head wants from the training labels [n, J], once, before the first step; most want nothing."""
        _, classes = targets.shape
        if classes != self.config.num_classes:
            raise ValueError(f"targets: expected shape [n, J={self.config.num_classes}], got {list(targets.shape)}")

    def extra_repr(self) -> str:
        height, width = self.grid
        return f"grid={height}×{width}, J={self.config.num_classes}"


def tokens(features: Tensor) -> Tensor:
    """Features [B, C, H, W] as a sequence of grid cells, [B, H·W, C]."""
    return features.flatten(2).transpose(1, 2)


def start_embedding(count: int, width: int) -> Tensor:
    """[count, width], of unit variance, as `nn.Embedding` starts."""
    return torch.randn(count, width)

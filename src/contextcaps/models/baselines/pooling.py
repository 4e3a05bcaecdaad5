"""Global pooling and a linear layer: the plainest head that there is, and a strong one."""

import torch
from torch import Tensor, nn

from contextcaps.models.baselines.baseline_head import BaselineHead, PositionParts, max_pooled_parts
from contextcaps.models.config import ModelConfig
from contextcaps.models.head_base import Step, count_weights
from contextcaps.models.sections import PoolingConfig

__all__ = ["PoolingHead"]


class PoolingHead(BaselineHead):
    """logits = W · pool(features) + b, where the pool over positions is the mean (`gap`) or the maximum (`gmp`)."""

    def __init__(self, config: ModelConfig, own: PoolingConfig, in_channels: int, grid: tuple[int, int]) -> None:
        super().__init__(config, in_channels, grid)
        self.mode = own.mode
        self.linear = nn.Linear(in_channels, config.num_classes)

    def logits(self, features: Tensor) -> Tensor:
        pool = torch.amax if self.mode == "max" else torch.mean
        return self.linear(pool(features, dim=(2, 3)))  # [B, J]

    def parts(self, features: Tensor) -> PositionParts:
        """Return the class activation maps (Zhou et al. 2016): W · features / (H·W), or W at each channel's maximum."""
        if self.mode == "max":
            return PositionParts(max_pooled_parts(features, self.linear.weight), self.linear.bias)
        cells = features.shape[-2] * features.shape[-1]
        return PositionParts(torch.einsum("bchw,jc->bjhw", features, self.linear.weight) / cells, self.linear.bias)

    def steps(self) -> list[Step]:
        name = f"global {self.mode} pooling, linear [J]"
        return [Step(name, (self.config.num_classes,), count_weights(self.linear))]

"""Global pooling and a linear layer: the plainest head that there is, and a strong one."""

import torch
from torch import Tensor, nn

from contextcaps.models.config import ModelConfig
from contextcaps.models.rivals.head import RivalHead

__all__ = ["PoolingHead"]


class PoolingHead(RivalHead):
    """logits = W · pool(features) + b, where the pool over positions is the mean (`gap`) or the maximum (`gmp`)."""

    def __init__(self, config: ModelConfig, in_channels: int, grid: tuple[int, int]) -> None:
        super().__init__(config, in_channels, grid)
        self.linear = nn.Linear(in_channels, config.num_classes)

    def logits(self, features: Tensor) -> Tensor:
        pool = torch.amax if self.config.head == "gmp" else torch.mean
        return self.linear(pool(features, dim=(2, 3)))  # [B, J]

    def steps(self) -> list[tuple[str, tuple[int, ...], nn.Module | nn.Parameter]]:
        kind = "max" if self.config.head == "gmp" else "average"
        return [(f"global {kind} pooling, linear [J]", (self.config.num_classes,), self.linear)]

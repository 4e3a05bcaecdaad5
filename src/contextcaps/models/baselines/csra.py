"""CSRA: the average-pooled logit plus that of the positions which a class looks at.

Zhu and Wu, "Residual Attention: A Simple but Effective Method for Multi-Label Recognition", ICCV 2021,
https://arxiv.org/abs/2108.02456.
"""

import math

from torch import Tensor, nn

from contextcaps.models.baselines.baseline_head import BaselineHead, tokens
from contextcaps.models.config import ModelConfig
from contextcaps.models.head_base import Step, count_weights
from contextcaps.models.sections import CSRAConfig

__all__ = ["CSRAHead"]


class CSRAHead(BaselineHead):
    """logits_j = Σ_heads mean_p s_pj + λ · Σ_p softmax_p(T · s_pj) s_pj, with s_pj = m_j · x_p / ‖m_j‖.

    Equations 3 to 9 of the paper, which are linear in the features: weighing logits is weighing features. Each head
    has classifiers m of its own and a temperature T; that of the last one is infinite, so that it takes the maximum. As
    in the authors' code the classifiers have no bias.
    """

    def __init__(self, config: ModelConfig, own: CSRAConfig, in_channels: int, grid: tuple[int, int]) -> None:
        super().__init__(config, in_channels, grid)
        self.temperatures = (*own.temperatures, *([math.inf] if own.max_head else []))
        self.attention_weight = own.attention_weight
        self.classifiers = nn.Linear(in_channels, len(self.temperatures) * config.num_classes, bias=False)

    def logits(self, features: Tensor) -> Tensor:
        cells = tokens(features)  # [B, H·W, C]
        scores = self.classifiers(cells) / self.classifiers.weight.norm(dim=1)  # [B, H·W, heads·J]
        total = features.new_zeros(())
        for temperature, own in zip(self.temperatures, scores.chunk(len(self.temperatures), dim=2), strict=True):
            if math.isinf(temperature):
                attended = own.amax(dim=1)  # [B, J]
            else:
                attended = ((temperature * own).softmax(dim=1) * own).sum(dim=1)  # [B, J]
            total = total + own.mean(dim=1) + self.attention_weight * attended  # [B, J]
        return total

    def steps(self) -> list[Step]:
        name = f"average and attended logits of {len(self.temperatures)} heads [J]"
        return [Step(name, (self.config.num_classes,), count_weights(self.classifiers))]

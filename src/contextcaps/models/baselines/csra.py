"""CSRA: the average-pooled logit plus that of the positions which a class looks at.

Zhu and Wu, "Residual Attention: A Simple but Effective Method for Multi-Label Recognition", ICCV 2021,
https://arxiv.org/abs/2108.02456.
"""

import math
from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.functional import one_hot

from contextcaps.models.baselines.baseline_head import BaselineHead, PositionParts, tokens
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
        total = features.new_zeros(())
        for temperature, own in self._scores(features):
            if math.isinf(temperature):
                attended = own.amax(dim=1)  # [B, J]
            else:
                attended = ((temperature * own).softmax(dim=1) * own).sum(dim=1)  # [B, J]
            total = total + own.mean(dim=1) + self.attention_weight * attended  # [B, J]
        return total

    def parts(self, features: Tensor) -> PositionParts:
        """Return (1/(H·W) + λ · attention_p) · s_pj, summed over heads; of equal maxima the first counts."""
        total = features.new_zeros(())
        for temperature, own in self._scores(features):
            if math.isinf(temperature):
                attention = one_hot(own.argmax(dim=1), own.shape[1]).transpose(1, 2).to(own)  # [B, H·W, J]
            else:
                attention = (temperature * own).softmax(dim=1)  # [B, H·W, J]
            total = total + (1 / own.shape[1] + self.attention_weight * attention) * own  # [B, H·W, J]
        return PositionParts(total.transpose(1, 2).unflatten(2, features.shape[2:]))  # [B, J, H, W]

    def _scores(self, features: Tensor) -> Iterator[tuple[float, Tensor]]:
        """Yield each attention head's temperature and its s_pj, [B, H·W, J]."""
        scores = self.classifiers(tokens(features)) / self.classifiers.weight.norm(dim=1)  # [B, H·W, heads·J]
        return zip(self.temperatures, scores.chunk(len(self.temperatures), dim=2), strict=True)

    def steps(self) -> list[Step]:
        name = f"average and attended logits of {len(self.temperatures)} heads [J]"
        return [Step(name, (self.config.num_classes,), count_weights(self.classifiers))]

"""C-Tran: a transformer encoder over grid cells and labels together, which can be told some of the labels.

Lanchantin et al., "General Multi-label Image Classification with Transformers", CVPR 2021,
https://arxiv.org/abs/2011.14027.
"""

import torch
from torch import Tensor, nn

from contextcaps.models.baselines.attention import Attention, FeedForward
from contextcaps.models.baselines.baseline_head import BaselineHead, start_embedding, tokens
from contextcaps.models.baselines.positions import sine_positions
from contextcaps.models.config import ModelConfig
from contextcaps.models.head_base import ModelOutput, Step, count_weights
from contextcaps.models.sections import CTranConfig

__all__ = ["CTranHead"]


class CTranHead(BaselineHead):
    """Cells and labels, each with its state → layers of self-attention over all of them → a logit for each label.

    A label's token is its embedding plus that of its state: known to be present, known to be absent, or, where nothing
    is known, zero. logit_j = w_j · token_j + b_j after the last layer, a readout of its own for each class. The score
    of a known class is what is known; its logit, from a token that holds the answer, is never trained.

    The tokens are normalised before the first layer, and a layer is as wide inside as outside, as in the authors' code.
    Unlike there, the features are projected to the configuration's width (theirs keeps the features' 2048 channels),
    and cells have positions, which are off by default there: sines and cosines, as in Query2Label, for any grid.
    """

    def __init__(self, config: ModelConfig, own: CTranConfig, in_channels: int, grid: tuple[int, int]) -> None:
        super().__init__(config, in_channels, grid)
        width, classes = own.width, config.num_classes
        self.width = width  # d
        self.embed = nn.Linear(in_channels, width)
        self.labels = nn.Parameter(start_embedding(classes, width))  # [J, d]
        # Drawn, as in the authors' code: from zero, Adam moves them too slowly beside the labels to say anything soon.
        self.states = nn.Parameter(start_embedding(2, width))  # [2, d]: known to be absent, known to be present
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(CTranLayer(own) for _ in range(own.layers))
        self.readout = nn.Linear(width, classes)  # row j is applied to the token of class j

    def forward(self, features: Tensor, return_intermediates: bool = False, known: Tensor | None = None) -> ModelOutput:
        """Score the classes of features [B, C, H, W], of which some are known, [B, J]: 1 present, 0 absent, else NaN.

        A number between 0 and 1 is a probability from elsewhere, and mixes both states.
        """
        output = self.output(self.logits(features, known), return_intermediates)
        if known is None:
            return output
        return output._replace(scores=torch.where(known.isnan(), output.scores, known.to(output.scores)))  # [B, J]

    def logits(self, features: Tensor, known: Tensor | None = None) -> Tensor:
        cells = self.embed(tokens(features))  # [B, H·W, d]
        cells = cells + sine_positions(features.shape[2], features.shape[3], self.width, cells)  # [B, H·W, d]
        labels = self.label_tokens(features, known).to(cells.dtype)  # [B, J, d]
        both = self.norm(torch.cat([cells, labels], dim=1))  # [B, H·W + J, d]
        for layer in self.layers:
            both = layer(both)  # [B, H·W + J, d]
        labels = both[:, cells.shape[1] :]  # [B, J, d]
        return (labels * self.readout.weight).sum(dim=2) + self.readout.bias  # [B, J]

    def label_tokens(self, features: Tensor, known: Tensor | None) -> Tensor:
        """Return label embeddings with those of their states, [B, J, d]."""
        if known is None:
            # Zeros rather than nothing: training in several processes needs a gradient for every weight.
            shares = self.labels.new_zeros(len(features), len(self.labels), 2)  # [B, J, 2]
        else:
            present = known.to(self.states)  # [B, J]
            shares = torch.stack([1 - present, present], dim=2).nan_to_num(0.0)  # [B, J, 2]
        return self.labels + shares @ self.states  # [B, J, d]

    def steps(self) -> list[Step]:
        width, cells, classes = self.width, self.grid[0] * self.grid[1], self.config.num_classes
        return [
            Step("embedded cells [H·W, d]", (cells, width), count_weights(self.embed)),
            Step("label and state embeddings [J, d]", (classes, width), count_weights(self.labels, self.states)),
            Step(
                f"{len(self.layers)} × self-attention [H·W + J, d]",
                (cells + classes, width),
                count_weights(self.norm, self.layers),
            ),
            Step("readout of each class [J]", (classes,), count_weights(self.readout)),
        ]


class CTranLayer(nn.Module):
    """Self-attention among all tokens, feed-forward."""

    def __init__(self, own: CTranConfig) -> None:
        super().__init__()
        self.among = Attention(own.width, own.attention_heads, own.dropout)
        self.feed_forward = FeedForward(own.width, own.width, own.dropout)

    def forward(self, both: Tensor) -> Tensor:
        return self.feed_forward(self.among(both, both, both))  # [B, H·W + J, d]

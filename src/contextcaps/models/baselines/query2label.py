"""Query2Label: a transformer decoder in which each class's query looks at the others and at the image.

Liu et al., "Query2Label: A Simple Transformer Way to Multi-Label Classification", 2021,
https://arxiv.org/abs/2107.10834.
"""

from torch import Tensor, nn

from contextcaps.models.baselines.attention import Attention, FeedForward
from contextcaps.models.baselines.baseline_head import BaselineHead, start_embedding, tokens
from contextcaps.models.baselines.positions import sine_positions
from contextcaps.models.config import ModelConfig
from contextcaps.models.head_base import Step, count_weights
from contextcaps.models.sections import Query2LabelConfig

__all__ = ["Query2LabelHead"]


class Query2LabelHead(BaselineHead):
    """Learnt label embeddings → two layers of self-attention, cross-attention and feed-forward → a logit for each.

    logit_j = w_j · q_j + b_j, a readout of its own for each class. As in the paper, the cells' positions are added to
    the keys, not to the values. The label embeddings are the queries themselves (its code adds them to the queries in
    every layer, from zeros). There is no encoder before the decoder, and the width is the configuration's.
    """

    def __init__(self, config: ModelConfig, own: Query2LabelConfig, in_channels: int, grid: tuple[int, int]) -> None:
        super().__init__(config, in_channels, grid)
        width, classes = own.width, config.num_classes
        self.width = width  # d
        self.embed = nn.Linear(in_channels, width)
        self.labels = nn.Parameter(start_embedding(classes, width))  # [J, d]
        self.layers = nn.ModuleList(Query2LabelLayer(own) for _ in range(own.layers))
        self.readout = nn.Linear(width, classes)  # row j is applied to the query of class j

    def logits(self, features: Tensor) -> Tensor:
        cells = self.embed(tokens(features))  # [B, H·W, d]
        positions = sine_positions(features.shape[2], features.shape[3], cells.shape[2], cells)  # [H·W, d]
        queries = self.labels.to(cells.dtype).expand(cells.shape[0], -1, -1)  # [B, J, d]
        for layer in self.layers:
            queries = layer(queries, cells, cells + positions)  # [B, J, d]
        return (queries * self.readout.weight).sum(dim=2) + self.readout.bias  # [B, J]

    def steps(self) -> list[Step]:
        width, cells, classes = self.width, self.grid[0] * self.grid[1], self.config.num_classes
        return [
            Step("embedded cells [H·W, d]", (cells, width), count_weights(self.embed)),
            Step("label embeddings [J, d]", (classes, width), count_weights(self.labels)),
            Step(
                f"{len(self.layers)} × self- and cross-attention [J, d]", (classes, width), count_weights(self.layers)
            ),
            Step("readout of each class [J]", (classes,), count_weights(self.readout)),
        ]


class Query2LabelLayer(nn.Module):
    """Self-attention among the labels, cross-attention to the cells, feed-forward."""

    def __init__(self, own: Query2LabelConfig) -> None:
        super().__init__()
        self.among = Attention(own.width, own.attention_heads, own.dropout)
        self.cross = Attention(own.width, own.attention_heads, own.dropout)
        self.feed_forward = FeedForward(own.width, 4 * own.width, own.dropout)

    def forward(self, queries: Tensor, cells: Tensor, placed: Tensor) -> Tensor:
        queries = self.among(queries, queries, queries)  # [B, J, d]
        return self.feed_forward(self.cross(queries, placed, cells))  # [B, J, d]

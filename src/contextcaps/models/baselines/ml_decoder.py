"""ML-Decoder: fixed queries that look at the image, but not at each other, and are read out in groups.

Ridnik et al., "ML-Decoder: Scalable and Versatile Classification Head", 2021, https://arxiv.org/abs/2111.12933.
"""

import torch
from torch import Tensor, nn

from contextcaps.models.baselines.attention import Attention, FeedForward
from contextcaps.models.baselines.baseline_head import BaselineHead, start_embedding, tokens
from contextcaps.models.config import ModelConfig
from contextcaps.models.head_base import Step, count_weights
from contextcaps.models.sections import MLDecoderConfig

__all__ = ["MLDecoderHead"]


class MLDecoderHead(BaselineHead):
    """Queries → cross-attention over the grid cells → feed-forward → each query's share of the classes.

    As in the paper: no self-attention, queries that are drawn once and not learnt (the attention's first layer learns
    what to make of them), no position encoding, one layer. With g = ⌈J / groups⌉ classes to a query, query q answers
    for the classes q·g to q·g + g − 1, so that the cost grows with the groups and not with the classes.
    The width is the configuration's, not the paper's 768, which is meant for larger backbones.
    """

    def __init__(self, config: ModelConfig, own: MLDecoderConfig, in_channels: int, grid: tuple[int, int]) -> None:
        super().__init__(config, in_channels, grid)
        width, classes = own.width, config.num_classes
        self.width = width  # d
        self.group_size = -(-classes // min(own.query_groups, classes))  # g
        self.groups = -(-classes // self.group_size)  # Q: fewer than asked for, where some would have no class
        self.embed = nn.Sequential(nn.Linear(in_channels, width), nn.ReLU())
        self.queries: Tensor
        self.register_buffer("queries", start_embedding(self.groups, width))  # [Q, d]
        self.layers = nn.ModuleList(MLDecoderLayer(own) for _ in range(own.layers))
        self.readout = nn.Linear(width, classes)  # row j is applied to the query of class j

    def logits(self, features: Tensor) -> Tensor:
        cells = self.embed(tokens(features))  # [B, H·W, d]
        queries = self.queries.to(cells.dtype).expand(cells.shape[0], -1, -1)  # [B, Q, d]
        for layer in self.layers:
            queries = layer(queries, cells)  # [B, Q, d]
        return self.read_out(queries)

    def read_out(self, queries: Tensor) -> Tensor:
        """Return logits [B, J] of queries [B, Q, d]."""
        missing = self.groups * self.group_size - self.config.num_classes  # of the last group
        weight = nn.functional.pad(self.readout.weight, (0, 0, 0, missing))  # [Q·g, d]
        logits = torch.einsum("bqd,qgd->bqg", queries, weight.unflatten(0, (self.groups, -1)).to(queries.dtype))
        return logits.flatten(1)[:, : self.config.num_classes] + self.readout.bias  # [B, J]

    def steps(self) -> list[Step]:
        width, cells = self.width, self.grid[0] * self.grid[1]
        return [
            Step("embedded cells [H·W, d]", (cells, width), count_weights(self.embed)),
            Step(
                f"fixed queries, {len(self.layers)} × cross-attention [Q, d]",
                (self.groups, width),
                count_weights(self.layers),
            ),
            Step("group readout [J]", (self.config.num_classes,), count_weights(self.readout)),
        ]


class MLDecoderLayer(nn.Module):
    """Cross-attention and feed-forward."""

    def __init__(self, own: MLDecoderConfig) -> None:
        super().__init__()
        self.cross = Attention(own.width, own.attention_heads, own.dropout)
        self.feed_forward = FeedForward(own.width, 4 * own.width, own.dropout)

    def forward(self, queries: Tensor, cells: Tensor) -> Tensor:
        return self.feed_forward(self.cross(queries, cells, cells))  # [B, Q, d]

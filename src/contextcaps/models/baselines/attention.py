"""Layers of the transformer heads: attention and a feed-forward, each added and normalised."""

from torch import Tensor, nn

__all__ = ["Attention", "FeedForward"]


class Attention(nn.Module):
    """norm(queries + dropout(attention(queries, keys, values))), with several heads (Vaswani et al. 2017).

    Args:
        width: d, of queries, keys and values.
        heads: attention heads, which share the width among them.
        dropout: of the attention's weights and of its result.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        found, _ = self.attention(queries, keys, values, need_weights=False)  # [B, Q, d]
        return self.norm(queries + self.dropout(found))  # [B, Q, d]


class FeedForward(nn.Module):
    """norm(x + dropout(W₂ · dropout(relu(W₁ · x)))).

    Args:
        width: d, of its input and output.
        inner: width between W₁ and W₂.
        dropout: inside, and of the result.
    """

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(width, inner),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(inner, width),
            nn.Dropout(dropout),
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, queries: Tensor) -> Tensor:
        return self.norm(queries + self.body(queries))  # [B, Q, d]

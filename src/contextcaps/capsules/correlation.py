"""Correlation module (CORR): a learned priority of each primary capsule for each class, by Cholesky's construction.

The paper, Section 3.3. Its recursion f_k = α_k/√(1+α_k²) · f_{k-1} + 1/√(1+α_k²) · vote_k, f_1 = vote_1, is one
weighted sum over k, with w_k = 1/√(1+α_k²) · Π_{m>k} α_m/√(1+α_m²) and α_1 = 0: a reverse cumulative product.
Σ_k w_k² = 1, and α_k = √(k-1) makes all weights equal. What the paper leaves open: docs/decisions/correlation.md.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from contextcaps.capsules.guards import (
    both_sides,
    require_choice,
    require_count,
    require_same_dtype,
    require_tensor,
    upcast,
)

__all__ = ["correlation_weights", "correlate", "uniform_alpha", "CorrelationModule", "CorrelationResult", "LowLevelMap"]

CorrelationStart = Literal["uniform", "literal"]


def correlation_weights(alpha: Tensor) -> Tensor:
    """Return the weight of each vote in the paper's recursion: [..., K-1] → [..., K], with unit sum of squares.

    The products are sums of logarithms and products of signs, in float32 at least, so that nothing overflows and only
    what is truly negligible underflows; α = 0 is exact, in value and in gradient.

    Args:
        alpha: [..., K-1]; `alpha[..., k-2]` is the paper's α_k, k = 2 … K. Any sign.

    >>> correlation_weights(torch.tensor([1.0, 2.0**0.5])) ** 2  # α_k = √(k-1): uniform
    tensor([0.3333, 0.3333, 0.3333])
    """
    if isinstance(alpha, Tensor) and alpha.ndim and alpha.shape[-1] == 0:  # one capsule, no alpha: it has all weight
        return alpha.new_ones(*alpha.shape[:-1], 1)
    require_tensor("alpha", alpha, "... K-1")
    wide = upcast(alpha)  # [..., K-1]
    least = torch.finfo(wide.dtype).tiny ** 0.25
    # log|α| at 0 would be -∞ and its gradient NaN. A stand-in value with the gradient of α itself: the product of
    # 1/least from the logarithm and of `least` from the exponential is the true derivative, and the value is 0 to
    # working precision.
    stand_in = torch.where(wide.abs() < least, least - wide, 0).detach()  # [..., K-1]
    signed = wide + stand_in  # [..., K-1], never 0
    magnitude = signed.abs()  # [..., K-1]

    # ρ = |α|/√(1+α²) and τ = 1/√(1+α²), each from the side where it does not lose digits.
    small, large = magnitude.clamp_max(1), magnitude.clamp_min(1)  # [..., K-1]
    small_log = -0.5 * torch.log1p(small * small)  # [..., K-1]
    large_log = -0.5 * torch.log1p(1 / (large * large))  # [..., K-1]
    log_rho = torch.where(magnitude <= 1, torch.log(small) + small_log, large_log)  # [..., K-1]
    log_tau = torch.where(magnitude <= 1, small_log, large_log - torch.log(large))  # [..., K-1]

    one = wide.new_zeros(*wide.shape[:-1], 1)  # [..., 1]: an empty product, and τ_1 = 1 as α_1 = 0
    log_products = log_rho.flip(-1).cumsum(dim=-1).flip(-1)  # [..., K-1], Σ_{m>k} log ρ_m
    log_products = torch.cat([log_products, one], dim=-1)  # [..., K]
    log_weights = torch.cat([one, log_tau], dim=-1) + log_products  # [..., K]
    negative = (signed < 0).to(wide.dtype).flip(-1).cumsum(dim=-1).flip(-1)  # [..., K-1], how many of α_m, m > k
    signs = 1 - 2 * torch.cat([negative, one], dim=-1).remainder(2)  # [..., K], Π_{m>k} sign α_m
    return (signs * torch.exp(log_weights)).to(alpha.dtype)  # [..., K]


def uniform_alpha(capsules: int, device: torch.device | None = None) -> Tensor:
    """Return α_k = √(k-1), k = 2 … K, [K-1]: the start from which all K weights are 1/√K."""
    return torch.arange(1, require_count("capsules", capsules), dtype=torch.float32, device=device).sqrt()


def correlate(votes: Tensor, alpha: Tensor) -> Tensor:
    """Sum the votes for each class with `correlation_weights(alpha)`, before any squash: the paper's f_ρ.

    Args:
        votes: [B, K, J, I].
        alpha: [B, J, K-1], or [J, K-1] for one priority scheme for all images.

    Returns:
        [B, J, I].

    >>> correlate(torch.randn(2, 12, 5, 16), torch.randn(2, 5, 11)).shape
    torch.Size([2, 5, 16])
    """
    batch, count, classes, _ = require_tensor("votes", votes, "B K J I")
    one_for_all = isinstance(alpha, Tensor) and alpha.ndim == 2
    sizes = {"B": batch, "J": classes, "K-1": count - 1}
    require_tensor("alpha", alpha, "J K-1" if one_for_all else "B J K-1", **sizes)
    require_same_dtype(votes=votes, alpha=alpha)
    weights = correlation_weights(alpha).expand(batch, classes, count)  # [B, J, K]
    return weighted_sum(votes, weights)  # [B, J, I]


def weighted_sum(votes: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_k weights_jk · vote_kj, [B, K, J, I] and [B, J, K] → [B, J, I]."""
    return torch.einsum("bjk,bkji->bji", weights.to(votes.dtype), votes)


class CorrelationResult(NamedTuple):
    """Sums of votes, and the weights that they were summed with."""

    sums: Tensor
    """[B, J, I], the decision capsules before the squash."""
    weights: Tensor
    """[B, J, K], each capsule's weight for each class, unit sum of squares over K."""


class LowLevelMap(nn.Module):
    """The one N×N feature map that alpha is read from: a 1×1 convolution of the primary capsules to one channel.

    Args:
        types: D, capsule types in each grid cell.
        attributes: A, attributes of a capsule.
        grid: side N of the grid, or (H, W).
    """

    def __init__(self, types: int, attributes: int, grid: int | tuple[int, int]) -> None:
        super().__init__()
        self.types, self.attributes, self.grid = types, attributes, both_sides(grid)
        channels = require_count("types", types) * require_count("attributes", attributes)
        self.weight = nn.Parameter(torch.empty(types, attributes).normal_(std=channels**-0.5))  # [D, A]
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, capsules: Tensor) -> Tensor:
        height, width = self.grid
        require_tensor("capsules", capsules, "B K A", K=self.types * height * width, A=self.attributes)
        require_same_dtype(capsules=capsules, weight=self.weight)
        by_type = capsules.unflatten(1, (self.types, height, width))  # [B, D, H, W, A]
        return torch.einsum("bdyxa,da->byx", by_type, self.weight) + self.bias  # [B, H, W]


class CorrelationModule(nn.Module):
    """A layer that predicts alpha from an N×N map, and the sum of the votes with it.

    The paper convolves the map with J(K-1) kernels of its own size: a linear layer from N² to J(K-1). Here that layer
    predicts a relative deviation δ from the uniform start, α_k = √(k-1) · (1 + δ_k), with weights so small (`SPREAD`)
    that the module starts at uniform weights to a part in a thousand while every weight already gets a gradient.

    Args:
        grid: side N of the map, or (H, W).
        capsules: K.
        classes: J.
        rank: r, for a low-rank layer N² → r → J(K-1); None for the full one.
        start: "uniform" as above; "literal" takes the layer's output as α itself, from a plain random start.
    """

    SPREAD = 1e-3

    def __init__(
        self,
        grid: int | tuple[int, int],
        capsules: int,
        classes: int,
        rank: int | None = None,
        start: CorrelationStart = "uniform",
    ) -> None:
        super().__init__()
        self.grid = both_sides(grid)
        self.capsules = require_count("capsules", capsules)
        self.classes = require_count("classes", classes)
        self.start: CorrelationStart = require_choice("start", start, ("uniform", "literal"))  # type: ignore[assignment]
        cells = self.grid[0] * self.grid[1]
        inputs = cells if rank is None else require_count("rank", rank)
        spread = (1.0 if start == "literal" else self.SPREAD) * inputs**-0.5
        self.condense = None
        if rank is not None:
            self.condense = nn.Parameter(torch.empty(cells, rank).normal_(std=cells**-0.5))  # [N², r]
        self.weight = nn.Parameter(torch.empty(inputs, classes, capsules - 1).normal_(std=spread))  # [N² or r, J, K-1]

    def condensed(self, feature_map: Tensor) -> Tensor:
        """Return the input of the last layer, [B, N² or r], for a map [B, H, W]."""
        require_tensor("feature_map", feature_map, "B H W", H=self.grid[0], W=self.grid[1])
        require_same_dtype(feature_map=feature_map, weight=self.weight)
        cells = feature_map.flatten(1)  # [B, N²]
        return cells if self.condense is None else cells @ self.condense

    def alpha(self, feature_map: Tensor) -> Tensor:
        """Return alpha [B, J, K-1] for a map [B, H, W]."""
        flat = self.condensed(feature_map) @ self.weight.flatten(1)  # [B, J·(K-1)]
        predicted = flat.unflatten(1, (self.classes, self.capsules - 1))  # [B, J, K-1]
        if self.start == "literal":
            return predicted
        return uniform_alpha(self.capsules, predicted.device) * (1 + upcast(predicted))  # [B, J, K-1]

    def weights(self, feature_map: Tensor) -> Tensor:
        """Return the capsules' weights [B, J, K] for a map [B, H, W]."""
        return correlation_weights(self.alpha(feature_map))

    def forward(self, votes: Tensor, feature_map: Tensor) -> CorrelationResult:
        batch, *_ = require_tensor("votes", votes, "B K J I", K=self.capsules, J=self.classes)
        require_tensor("feature_map", feature_map, "B H W", B=batch)
        weights = self.weights(feature_map)  # [B, J, K]
        return CorrelationResult(weighted_sum(votes, weights), weights)

    def extra_repr(self) -> str:
        rank = None if self.condense is None else self.condense.shape[1]
        return f"grid={self.grid}, capsules={self.capsules}, classes={self.classes}, rank={rank}, start={self.start!r}"

"""The correlation module's weights by one kernel forward and one backward."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from contextcaps.capsules.fused import correlation_kernels
from contextcaps.capsules.fused.availability import interpreted
from contextcaps.capsules.guards import require_tensor

__all__ = ["fused_correlation_weights"]


def fused_correlation_weights(given: Tensor, uniform: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """`correlation_weights` with classes innermost: [B, K-1, J] → [B, K, J].

    Args:
        given: alpha; or, with `uniform`, deviations δ from uniform weights, α_k = √(k-1) · (1 + δ_k).
        uniform: see there.
        dtype: of the result, that of `given` by default.
    """
    dtype = given.dtype if dtype is None else dtype
    if given.ndim == 3 and given.shape[1] == 0:  # one capsule has all the weight
        return given.new_ones(len(given), 1, given.shape[2], dtype=dtype)
    require_tensor("given", given, "B K-1 J")
    return _Weights.apply(given, uniform, dtype)


class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, uniform: bool, dtype: torch.dtype) -> Tensor:
        given = given.contiguous()
        batch, fewer, classes = given.shape
        weights = given.new_empty(batch, fewer + 1, classes, dtype=dtype)
        grid, sizes = _sizes(batch, classes)
        with torch.cuda.device_of(given):
            correlation_kernels.weights_kernel[grid](given, weights, fewer + 1, classes, UNIFORM=uniform, **sizes)
        ctx.save_for_backward(given, weights)
        ctx.uniform = uniform
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        given, weights = ctx.saved_tensors  # [B, K-1, J], [B, K, J]
        batch, fewer, classes = given.shape
        found = torch.empty_like(given)
        grid, sizes = _sizes(batch, classes)
        correlation_kernels.weights_backward_kernel[grid](
            given, weights, gradients[0].contiguous(), found, fewer + 1, classes, UNIFORM=ctx.uniform, **sizes
        )
        return found, None, None


def _sizes(batch: int, classes: int) -> tuple[tuple[int, int], dict[str, int]]:
    block = 16 if classes <= 16 or interpreted() else 32
    return (batch, -(-classes // block)), {"BLOCK": block, "RUN": 64, "num_warps": 4}

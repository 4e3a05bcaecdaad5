"""The correlation module's weights for a few classes at a time: `correlation_weights` makes some twenty tensors."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from contextcaps.capsules.correlation import correlation_weights

__all__ = ["lean_correlation_weights"]

_AT_A_TIME = 1 << 17  # numbers


def lean_correlation_weights(alpha: Tensor) -> Tensor:
    """`correlation_weights` of [B, J, K-1], computed once more in the backward pass rather than kept."""
    return _Weights.apply(alpha)


class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, alpha: Tensor) -> Tensor:
        ctx.save_for_backward(alpha)
        weights = alpha.new_empty(*alpha.shape[:2], alpha.shape[2] + 1)  # [B, J, K]
        for classes in _chunks(alpha):
            weights[:, classes] = correlation_weights(alpha[:, classes])
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (alpha,) = ctx.saved_tensors  # [B, J, K-1]
        found = torch.empty_like(alpha)
        for classes in _chunks(alpha):
            part = alpha[:, classes].detach().requires_grad_()
            with torch.enable_grad():
                weights = correlation_weights(part)
            if part.numel():
                (found[:, classes],) = torch.autograd.grad(weights, part, gradients[0][:, classes])
        return found


def _chunks(alpha: Tensor) -> list[slice]:
    batch, classes, fewer = alpha.shape
    step = max(1, _AT_A_TIME // max(1, batch * fewer))
    return [slice(start, min(start + step, classes)) for start in range(0, classes, step)]

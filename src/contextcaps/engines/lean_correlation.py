"""The correlation module's weights for a few classes at a time: `correlation_weights` makes some twenty tensors.

Backward, with w the weights and ρ = α/√(1+α²), τ = 1/√(1+α²): log ρ_m is part of log w of the capsules before m, and
log τ_m of that of capsule m. So the gradient is Σ_{k<m} w_k · dw_k · 1/(α(1+α²)) - w_m · dw_m · α/(1+α²).
"""

from typing import Any

import torch
from torch import Tensor

from contextcaps import capsules
from contextcaps.capsules import CorrelationModule
from contextcaps.capsules.guards import unchecked, upcast

__all__ = ["correlation_weights", "tiled_weights"]

_AT_A_TIME = 1 << 17  # numbers


def correlation_weights(module: CorrelationModule, feature_map: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the module's weights for a map [B, H, W], as [B, K, J]; their precision is that of alpha."""
    return tiled_weights(module.alpha(feature_map)).transpose(1, 2)


@torch.library.custom_op("contextcaps::lean_correlation_weights", mutates_args=())
def tiled_weights(alpha: Tensor) -> Tensor:
    """Return `correlation_weights` of alpha [B, J, K-1], [B, J, K]."""
    weights = alpha.new_empty(*alpha.shape[:2], alpha.shape[2] + 1)
    with unchecked():
        for classes in _chunks(alpha):
            weights[:, classes] = capsules.correlation_weights(alpha[:, classes])
    return weights


@tiled_weights.register_fake
def _(alpha: Tensor) -> Tensor:
    return alpha.new_empty(*alpha.shape[:2], alpha.shape[2] + 1)


@torch.library.custom_op("contextcaps::lean_correlation_weights_backward", mutates_args=())
def _tiled_weights_backward(alpha: Tensor, weights: Tensor, gradient: Tensor) -> Tensor:
    found = torch.empty_like(alpha)
    least = torch.finfo(upcast(alpha).dtype).tiny ** 0.25  # what stands for zero, as in `correlation_weights`
    for classes in _chunks(alpha):
        by_logs = upcast(weights[:, classes]) * upcast(gradient[:, classes])  # [B, j, K]
        before = by_logs.cumsum(dim=2)[..., :-1]  # [B, j, K-1]
        signed = upcast(alpha[:, classes])  # [B, j, K-1]
        signed = torch.where(signed.abs() < least, least, signed)
        inverse, small = 1 / signed, signed.abs() <= 1
        shrunk = 1 / (1 + torch.where(small, signed, inverse).square())  # [B, j, K-1], so that α² does not overflow
        by_rho = inverse * torch.where(small, shrunk, inverse.square() * shrunk)
        by_tau = torch.where(small, signed, inverse) * shrunk
        found[:, classes] = before * by_rho - by_logs[..., 1:] * by_tau
    return found


@_tiled_weights_backward.register_fake
def _(alpha: Tensor, weights: Tensor, gradient: Tensor) -> Tensor:
    return torch.empty_like(alpha)


def _set_up(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _backward(ctx: Any, gradient: Tensor) -> Tensor:
    return _tiled_weights_backward(*ctx.saved_tensors, gradient)


tiled_weights.register_autograd(_backward, setup_context=_set_up)


def _chunks(alpha: Tensor) -> list[slice]:
    batch, classes, fewer = alpha.shape
    step = max(1, _AT_A_TIME // max(1, batch * fewer))
    return [slice(start, min(start + step, classes)) for start in range(0, classes, step)]

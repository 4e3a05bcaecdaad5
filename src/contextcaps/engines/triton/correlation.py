"""The correlation module's weights by one kernel forward and one backward."""

from typing import Any

import torch
from torch import Tensor

from contextcaps.capsules import CorrelationModule
from contextcaps.engines.operands import is_plain_call
from contextcaps.engines.triton import correlation_kernels
from contextcaps.engines.triton.available import INTERPRETED

__all__ = ["correlation_weights", "weights_by_capsule"]


def correlation_weights(module: CorrelationModule, feature_map: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the module's weights for a map [B, H, W], in this precision and as [B, K, J]."""
    by_capsule = module.weight.to(dtype).transpose(1, 2).flatten(1)  # [N² or r, (K-1)·J]
    flat = module.condensed(feature_map).to(dtype) @ by_capsule  # [B, (K-1)·J]
    predicted = flat.unflatten(1, (module.capsules - 1, module.classes))  # [B, K-1, J]
    return weights_by_capsule(predicted, module.start == "uniform")


def weights_by_capsule(given: Tensor, uniform: bool = False) -> Tensor:
    """Return `correlation_weights` with classes innermost: [B, K-1, J] → [B, K, J].

    Args:
        given: alpha; or, with `uniform`, deviations δ from uniform weights, α_k = √(k-1) · (1 + δ_k).
        uniform: see there.
    """
    if given.shape[1] == 0:  # one capsule has all the weight
        return given.new_ones(len(given), 1, given.shape[2])
    return (_weights_at_once if is_plain_call(given) else _weights)(given, uniform)


def _weights_at_once(given: Tensor, uniform: bool) -> Tensor:
    batch, fewer, classes = given.shape
    weights = given.new_empty(batch, fewer + 1, classes)
    grid, sizes = _sizes(batch, classes)
    with torch.cuda.device_of(given):
        correlation_kernels.weights_kernel[grid](
            given.contiguous(), weights, fewer + 1, classes, UNIFORM=uniform, **sizes
        )
    return weights


_weights = torch.library.custom_op("contextcaps::triton_correlation_weights", _weights_at_once, mutates_args=())


@_weights.register_fake
def _(given: Tensor, uniform: bool) -> Tensor:
    batch, fewer, classes = given.shape
    return given.new_empty(batch, fewer + 1, classes)


@torch.library.custom_op("contextcaps::triton_correlation_weights_backward", mutates_args=())
def _weights_backward(given: Tensor, weights: Tensor, gradient: Tensor, uniform: bool) -> Tensor:
    given, (batch, fewer, classes) = given.contiguous(), given.shape
    found = torch.empty_like(given)
    grid, sizes = _sizes(batch, classes)
    correlation_kernels.weights_backward_kernel[grid](
        given, weights, gradient.contiguous(), found, fewer + 1, classes, UNIFORM=uniform, **sizes
    )
    return found


@_weights_backward.register_fake
def _(given: Tensor, weights: Tensor, gradient: Tensor, uniform: bool) -> Tensor:
    return torch.empty_like(given, memory_format=torch.contiguous_format)


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    given, ctx.uniform = inputs
    ctx.save_for_backward(given, output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return _weights_backward(*ctx.saved_tensors, gradient, ctx.uniform), None


_weights.register_autograd(_backward, setup_context=_set_up)


def _sizes(batch: int, classes: int) -> tuple[tuple[int, int], dict[str, int]]:
    block = 16 if classes <= 16 or INTERPRETED else 32
    return (batch, -(-classes // block)), {"BLOCK": block, "RUN": 64, "num_warps": 4}

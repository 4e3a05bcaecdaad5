"""Which way the head computes: all votes in memory, a few at a time, or by fused kernels."""

from typing import Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from contextcaps.capsules.fused.availability import why_not_fused
from contextcaps.models.config import ModelConfig

__all__ = ["Backend", "choose_backend", "computing_dtype"]

Backend = Literal["plain", "lean", "triton"]

_LEAN_FROM = 1 << 22  # votes; below, they fit into a cache and need no tiles
_LEAN_ON_GPU_FROM = 1 << 30  # votes of 4 GiB in float32: there, memory matters more than time
_FUSED_FROM = 1 << 20  # votes; below, starting the kernels takes longer than their work


def choose_backend(config: ModelConfig, capsules: Tensor, weight: Tensor) -> Backend:
    """The backend for capsules [B, K, A] and vote weights.

    Raises:
        ValueError: the configuration asks for Triton's, which cannot be had.
    """
    asked = config.engine
    if asked == "plain":
        return "plain"
    why_not = _why_plain(config, weight)
    if why_not is not None:
        if asked == "triton":
            raise ValueError(f"engine: expected 'auto' or 'plain', got 'triton': {why_not}")
        return "plain"
    votes = capsules.shape[0] * capsules.shape[1] * weight.shape[2] * weight.shape[3]
    half = computing_dtype(capsules) != torch.float32
    if asked == "triton" or (asked == "auto" and capsules.is_cuda and half and votes >= _FUSED_FROM):
        why_not = why_not_fused(capsules.device, computing_dtype(capsules))
        if why_not is None:
            return "triton"
        if asked == "triton":
            raise ValueError(f"engine: expected 'auto', 'lean' or 'plain', got 'triton': {why_not}")
    if torch.compiler.is_compiling():
        return "plain"
    if asked == "lean":
        return "lean"
    return "lean" if votes >= (_LEAN_FROM if capsules.device.type == "cpu" else _LEAN_ON_GPU_FROM) else "plain"


def _why_plain(config: ModelConfig, weight: Tensor) -> str | None:
    if config.em is not None:
        return "EM routing needs all votes at once"
    if isinstance(weight, DTensor):  # put together for `Votes.forward` only
        return "the vote weights are shared among processes"
    return None


def computing_dtype(capsules: Tensor) -> torch.dtype:
    """What the votes will be computed in."""
    kind = capsules.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else capsules.dtype

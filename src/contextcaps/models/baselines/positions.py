"""Positions of grid cells, for attention over them."""

import math

import torch
from torch import Tensor

__all__ = ["sine_positions"]


def sine_positions(height: int, width: int, channels: int, like: Tensor) -> Tensor:
    """Encode where each cell is, as sines and cosines, [H·W, channels] (Carion et al. 2020, as Query2Label has it).

    Half of the channels are of the row, half of the column; of each half, a quarter of `channels` are sines and as many
    cosines of the position, 2π · (index + 1) / count, over 10000^(2i / half) for i = 0, 1, …

    Args:
        height, width: of the grid.
        channels: a multiple of 4.
        like: whose device and type the result has.
    """
    steps = torch.arange(channels // 4, device=like.device, dtype=torch.float32)  # [channels / 4]
    periods = 10_000.0 ** (2 * steps / (channels // 2))  # [channels / 4]

    def along(count: int) -> Tensor:
        indices = torch.arange(1, count + 1, device=like.device, dtype=torch.float32)
        angles = 2 * math.pi * indices[:, None] / count / periods  # [count, channels / 4]
        return torch.cat([angles.sin(), angles.cos()], dim=1)  # [count, channels / 2]

    rows = along(height)[:, None].expand(-1, width, -1)  # [H, W, channels / 2]
    columns = along(width)[None].expand(height, -1, -1)  # [H, W, channels / 2]
    return torch.cat([rows, columns], dim=2).flatten(0, 1).to(like.dtype)  # [H·W, channels]

"""Trainable initial routing weights (RW): what routing starts from, read off the primary capsules.

The paper, Section 3.1: each capsule is summed up by one number, s_k = mean / max(std, ε); the D maps of these numbers
are convolved with one f×f kernel (f = 5); the K results are repeated over the J classes.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from contextcaps.capsules.guards import both_sides, require_count, require_same_dtype, require_tensor, upcast

__all__ = ["capsule_statistic", "initial_routing", "InitialRouting"]


def capsule_statistic(capsules: Tensor, eps: float = 1e-3) -> Tensor:
    """Return one number per capsule: s_k = μ_k / max(σ_k, ε), σ the population standard deviation over attributes.

    Below ε the deviation does not count and gets no gradient, so equal attributes are harmless.

    Args:
        capsules: [B, K, A].
        eps: the least deviation, ε.

    Returns:
        [B, K].

    >>> capsule_statistic(torch.tensor([[[1.0, 3.0], [2.0, 2.0]]])).round()  # 2/1 and 2/0.001
    tensor([[   2., 2000.]])
    """
    require_tensor("capsules", capsules, "B K A")
    _require_eps(eps)
    wide = upcast(capsules)  # [B, K, A]
    mean = wide.mean(dim=-1)  # [B, K]
    variance = (wide - mean.unsqueeze(-1)).square().mean(dim=-1)  # [B, K]
    # The clamp comes before the root, whose slope at zero is infinite.
    deviation = variance.clamp_min(eps * eps).sqrt()  # [B, K]
    return (mean / deviation).to(capsules.dtype)  # [B, K]


def _require_eps(eps: float) -> float:
    if not eps > 0:
        raise ValueError(f"eps: expected a number above 0, got {eps!r}")
    return eps


def initial_routing(
    capsules: Tensor, kernel: Tensor, grid: int | tuple[int, int], bias: Tensor | None = None, eps: float = 1e-3
) -> Tensor:
    """Return initial routing weights b_k: the maps of `capsule_statistic`, each convolved with the same f×f kernel.

    Args:
        capsules: [B, K, A] with K = D·H·W, type-major.
        kernel: [f, f], f odd; zero padding (f-1)/2 keeps the grid.
        grid: side N of the grid, or (H, W).
        bias: a tensor of a single number, added to all.
        eps: as in `capsule_statistic`.

    Returns:
        [B, K]; `dynamic_routing` repeats it over classes.
    """
    batch, count, _ = require_tensor("capsules", capsules, "B K A")
    size, _ = require_tensor("kernel", kernel, "f f")
    if size % 2 == 0 or kernel.shape[0] != kernel.shape[1]:
        raise ValueError(f"kernel: expected shape [f, f] with f odd, got {list(kernel.shape)}")
    height, width = both_sides(grid)
    if bias is not None:
        require_tensor("bias", bias.reshape(-1) if isinstance(bias, Tensor) else bias, "one", one=1)
    if count % (height * width):
        raise ValueError(
            f"capsules: expected K a multiple of the grid's {height}×{width} = {height * width}, got K={count}"
        )
    require_same_dtype(capsules=capsules, kernel=kernel)
    maps = capsule_statistic(capsules, eps).reshape(-1, 1, height, width)  # [B·D, 1, H, W]
    if maps.is_cuda:  # cuDNN's gradient of so small a kernel over so many maps takes thirty times as long
        windows = functional.pad(maps, [size // 2] * 4).unfold(2, size, 1).unfold(3, size, 1)  # [B·D, 1, H, W, f, f]
        mixed = windows.flatten(4) @ kernel.flatten()  # [B·D, 1, H, W]
    else:
        mixed = functional.conv2d(maps, kernel[None, None], padding=size // 2)  # [B·D, 1, H, W]
    if bias is not None:
        mixed = mixed + bias
    return mixed.reshape(batch, count)  # [B, K]


class InitialRouting(nn.Module):
    """`initial_routing` with its kernel: capsules [B, K, A] → [B, K], one kernel shared over types.

    Args:
        grid: side N of the primary-capsule grid, or (H, W).
        types: D, capsule types in each grid cell.
        kernel_size: f, odd.
        start: None for the paper's form, a randomly initialised kernel and nothing else. A number adds a learnable bias
            that starts there, and starts the kernel at zero: every capsule begins with the same weight, `start`.
        eps: as in `capsule_statistic`.
    """

    def __init__(
        self,
        grid: int | tuple[int, int],
        types: int,
        kernel_size: int = 5,
        start: float | None = None,
        eps: float = 1e-3,
    ) -> None:
        super().__init__()
        self.grid = both_sides(grid)
        self.types = require_count("types", types)
        self.eps = _require_eps(eps)
        if require_count("kernel_size", kernel_size) % 2 == 0:
            raise ValueError(f"kernel_size: expected an odd number, got {kernel_size}")
        self.kernel = nn.Parameter(torch.zeros(kernel_size, kernel_size))  # [f, f]
        self.bias = None if start is None else nn.Parameter(torch.tensor([float(start)]))  # [1]
        if start is None:
            nn.init.uniform_(self.kernel, -1 / kernel_size, 1 / kernel_size)

    def forward(self, capsules: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Return weights [B, K] for capsules [B, K, A] on the module's grid, or on another one given here."""
        height, width = grid or self.grid
        require_tensor("capsules", capsules, "B K A", K=self.types * height * width)
        return initial_routing(capsules, self.kernel, (height, width), self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"grid={self.grid}, types={self.types}, kernel_size={self.kernel.shape[0]}"

"""Primary capsules: a feature map regrouped into short vectors, one per type and grid position.

Sabour et al. 2017, Section 4; the paper, Section 3.1. Letters: D types, H×W (the paper: N×N) grid, A attributes,
K = D·H·W, and k = (d·H + y)·W + x, so that the capsules of one type lie together.
"""

from torch import Tensor, nn

from contextcaps.capsules.guards import require_count, require_same_dtype, require_tensor
from contextcaps.capsules.squash import squash

__all__ = ["group_capsules", "primary_grid", "PrimaryCapsules"]


def group_capsules(maps: Tensor, types: int, attributes: int) -> Tensor:
    """Regroup feature maps [B, D·A, H, W] into capsules [B, K, A]; channel d·A + a holds attribute a of type d.

    >>> import torch
    >>> group_capsules(torch.zeros(2, 32 * 8, 6, 6), types=32, attributes=8).shape
    torch.Size([2, 1152, 8])
    """
    require_count("types", types)
    require_count("attributes", attributes)
    batch, _, height, width = require_tensor("maps", maps, "B D·A H W", **{"D·A": types * attributes})
    grouped = maps.reshape(batch, types, attributes, height, width)  # [B, D, A, H, W]
    return grouped.permute(0, 1, 3, 4, 2).reshape(batch, types * height * width, attributes)  # [B, K, A]


def primary_grid(features: tuple[int, int], kernel_size: int, stride: int, padding: int) -> tuple[int, int]:
    """Return (H, W) of the capsules that a convolution cuts from a feature map of that height and width.

    >>> primary_grid((20, 20), kernel_size=9, stride=2, padding=0)  # 28 px after the paper's first convolution
    (6, 6)
    """
    height, width = ((side + 2 * padding - kernel_size) // stride + 1 for side in features)
    if min(height, width) < 1:
        least = kernel_size - 2 * padding
        raise ValueError(
            f"features: expected a map of at least {least}×{least} for primary capsules of kernel {kernel_size}, "
            f"got {features[0]}×{features[1]}; use larger images or another backbone"
        )
    return height, width


class PrimaryCapsules(nn.Module):
    """A convolution to D·A channels, regrouped and squashed: feature map [B, C, H, W] → capsules [B, K, A].

    The paper's setting is a 9×9 kernel with stride 2 on 256 channels, D = 32 types of A = 8 attributes. The weights
    start with unit gain (variance 1/fan-in), so that features of unit size make capsules well away from length 0.

    Args:
        in_channels: channels C of the feature map.
        types: D, capsule types in each grid cell.
        attributes: A, attributes of a capsule.
        kernel_size: side of the convolution's kernel.
        stride: its stride.
        padding: its zero padding.
    """

    def __init__(
        self, in_channels: int, types: int, attributes: int, kernel_size: int = 9, stride: int = 2, padding: int = 0
    ) -> None:
        super().__init__()
        self.types = require_count("types", types)
        self.attributes = require_count("attributes", attributes)
        self.convolution = nn.Conv2d(
            require_count("in_channels", in_channels),
            types * attributes,
            kernel_size=require_count("kernel_size", kernel_size),
            stride=require_count("stride", stride),
            padding=require_count("padding", padding, least=0),
        )
        nn.init.kaiming_normal_(self.convolution.weight, nonlinearity="linear")
        nn.init.zeros_(self.convolution.bias)  # type: ignore[arg-type]

    def grid_of(self, features: Tensor) -> tuple[int, int]:
        """Return (H, W) of the capsules that these features give."""
        convolution = self.convolution
        kernel_size, stride, padding = convolution.kernel_size[0], convolution.stride[0], int(convolution.padding[0])
        return primary_grid((features.shape[-2], features.shape[-1]), kernel_size, stride, padding)

    def forward(self, features: Tensor) -> Tensor:
        require_tensor("features", features, "B C H W", C=self.convolution.in_channels)
        require_same_dtype(features=features, weight=self.convolution.weight)
        self.grid_of(features)  # refuses a map that is too small
        maps = self.convolution(features)  # [B, D·A, H', W']
        return squash(group_capsules(maps, self.types, self.attributes))  # [B, K, A]

"""Backbones: from images [B, C, H, W] to a feature map, and how primary capsules are to be cut from it.

`paper` and `small` are here; `timm:NAME` is any model of timm that gives feature maps, through the extra `timm`.
"""

import torch
from torch import Tensor, nn

from contextcaps.extras import import_extra
from contextcaps.models.config import ModelConfig

__all__ = ["Backbone", "PaperBackbone", "SmallBackbone", "TimmBackbone", "build_backbone"]


class Backbone(nn.Module):
    """A backbone says how many channels it gives and which convolution turns them into primary capsules."""

    out_channels: int
    primary_kernel: int
    primary_stride: int
    primary_padding: int


class PaperBackbone(Backbone):
    """The first of Sabour's two 9×9 convolutions, 256 channels and a ReLU; the second one is the primary capsules'.

    The grid is (size − 8 − 8) / 2, rounded down: 6 at 28 px, 8 at 32 px, 24 at 64 px. Meant for up to 32 px.
    """

    out_channels, primary_kernel, primary_stride, primary_padding = 256, 9, 2, 0

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(in_channels, self.out_channels, kernel_size=9)
        _start(self.convolution)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.convolution(images))  # [B, 256, H-8, W-8]


class SmallBackbone(Backbone):
    """A strided residual stem for 32 to 128 px: seven 3×3 convolutions, at most 8×8 cells: 4×4 at 32 px, 8×8
    at 64 and at 128 px.

    Group normalisation rather than batch normalisation: the same in training and use, for any batch size.
    """

    out_channels, primary_kernel, primary_stride, primary_padding = 256, 3, 1, 1

    def __init__(self, in_channels: int, image_size: tuple[int, int]) -> None:
        super().__init__()
        first_stride = 2 if max(image_size) > 64 else 1
        self.stem = nn.Sequential(_convolution(in_channels, 64, stride=first_stride), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(ResidualBlock(64, 64), ResidualBlock(64, 128), ResidualBlock(128, 256))

    def forward(self, images: Tensor) -> Tensor:
        return self.blocks(self.stem(images))  # [B, 256, H/8, W/8], or /16 from 65 px on


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions, the first with stride 2, beside a 1×1 convolution of the same stride."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _convolution(in_channels, out_channels, stride=2),
            nn.ReLU(inplace=True),
            _convolution(out_channels, out_channels),
        )
        self.shortcut = _convolution(in_channels, out_channels, stride=2, kernel_size=1)

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(self.body(features) + self.shortcut(features))


def _convolution(in_channels: int, out_channels: int, stride: int = 1, kernel_size: int = 3) -> nn.Sequential:
    convolution = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding=kernel_size // 2, bias=False)
    _start(convolution)
    return nn.Sequential(convolution, nn.GroupNorm(8, out_channels))


def _start(convolution: nn.Conv2d) -> None:
    """He's start for a convolution before a ReLU, so that signals keep their size."""
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)


class TimmBackbone(Backbone):
    """The last feature map of a timm model, normalised to unit size (timm's models differ in theirs)."""

    primary_kernel, primary_stride, primary_padding = 1, 1, 0

    def __init__(self, name: str, in_channels: int, pretrained: bool) -> None:
        super().__init__()
        timm = import_extra("timm", "timm", f"backbone timm:{name}")
        if not timm.is_model(name):
            near = timm.list_models(f"*{name}*")[:5]
            hint = f"did you mean {', '.join(near)}?" if near else "timm.list_models() lists them all"
            raise ValueError(f"backbone: timm has no model {name!r}; {hint}")
        try:
            self.body = timm.create_model(
                name, pretrained=pretrained, in_chans=in_channels, features_only=True, out_indices=(-1,)
            )
        except (RuntimeError, AttributeError) as error:
            raise ValueError(f"backbone: timm's {name!r} gives no feature maps: {error}") from error
        self.out_channels = self.body.feature_info.channels()[-1]
        self.norm = nn.GroupNorm(1, self.out_channels)

    def forward(self, images: Tensor) -> Tensor:
        (features,) = self.body(images)  # [B, C, H, W], or [B, H, W, C] from some transformers
        if features.shape[1] != self.out_channels:
            features = features.permute(0, 3, 1, 2)
        return self.norm(features)  # [B, C, H, W]


def build_backbone(config: ModelConfig) -> Backbone:
    """The backbone that a configuration names."""
    if config.backbone == "paper":
        return PaperBackbone(config.in_channels)
    if config.backbone == "small":
        return SmallBackbone(config.in_channels, config.image_size)
    if config.backbone.startswith("timm:"):
        return TimmBackbone(config.backbone.removeprefix("timm:"), config.in_channels, config.pretrained)
    raise ValueError(f"backbone: expected 'paper', 'small', 'timm:NAME' or 'auto', got {config.backbone!r}")

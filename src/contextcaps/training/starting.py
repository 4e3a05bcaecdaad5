"""Start a training from the backbone of a trained model: its weights, its image size, its normalisation."""

import dataclasses
import math

from torch import Tensor

from contextcaps.models import ModelConfig
from contextcaps.models.loading import load_model
from contextcaps.training.config import TrainConfig

__all__ = ["describe_start", "starting_backbone", "with_starting_model"]


def with_starting_model(config: TrainConfig) -> TrainConfig:
    """Return the configuration with what was left open filled in, from the model of `start_from` where there is one.

    Raises:
        ModelFileError: there is no such model.
        ValueError: it has another backbone than the one asked for.
    """
    if config.start_from is None:
        return dataclasses.replace(config, image_size=config.side)
    model = load_model(config.start_from)[0].config
    if config.backbone not in ("auto", model.backbone):
        raise ValueError(
            f"backbone: expected auto or {model.backbone}, the backbone of {config.start_from}, got {config.backbone}"
        )
    if config.image_size is None and model.image_size[0] != model.image_size[1]:
        raise ValueError(f"image_size: {config.start_from} has {_size(model)}; say which side to train with")
    normalisation = {"pixel_mean": list(model.pixel_mean or ()), "pixel_std": list(model.pixel_std or ())}
    return dataclasses.replace(
        config,
        image_size=model.image_size[0] if config.image_size is None else config.image_size,
        backbone=model.backbone,
        options={**normalisation, **config.options},
    )


def starting_backbone(config: TrainConfig) -> dict[str, Tensor] | None:
    """Read the weights that the backbone starts from; None where it starts as its configuration says."""
    if config.start_from is None:
        return None
    network, _ = load_model(config.start_from)
    return dict(network.backbone.state_dict())


def describe_start(config: TrainConfig, classes: int) -> str:
    """Say what a training takes over from the model of `start_from`."""
    assert config.start_from is not None
    network, trained = load_model(config.start_from)
    weights = sum(math.prod(parameter.shape) for parameter in network.backbone.parameters())
    same = "as there" if network.config.image_size == (config.side, config.side) else f"not {_size(network.config)}"
    data = "" if trained is None else f" (trained on {len(trained.thresholds)} classes)"
    return (
        f"the backbone {config.backbone}, {weights / 1e6:.1f} million weights, starts from {config.start_from}{data}; "
        f"images of {config.side}×{config.side} px, {same}; the head for {classes} classes is new"
    )


def _size(model: ModelConfig) -> str:
    height, width = model.image_size
    return f"{height}×{width} px"

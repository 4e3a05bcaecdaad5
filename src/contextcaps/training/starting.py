"""Start a training from the backbone of a trained model: its weights, its image size, its normalisation."""

import dataclasses
import functools

import torch
from torch import Tensor

from contextcaps.models import ModelConfig
from contextcaps.models.backbones import Backbone, build_backbone
from contextcaps.models.head_base import count_weights
from contextcaps.models.loading import load_config, load_model
from contextcaps.models.saving import misfits
from contextcaps.models.trained import Trained
from contextcaps.models.unfilled import Unfilled
from contextcaps.training.config import TrainConfig

__all__ = ["StartingModel", "starting_model", "with_starting_model"]

_CHANNELS = 3
"""Channels of the images that are trained on; grey ones come with theirs repeated."""


class StartingModel:
    """A trained model whose backbone a training starts from; each file of it is read once, when it is needed.

    Args:
        name: as `load_model` takes it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @functools.cached_property
    def config(self) -> ModelConfig:
        """Its configuration; a `ModelFileError` where there is no such model."""
        return load_config(self.name)

    @functools.cached_property
    def _loaded(self) -> tuple[Backbone, Trained | None]:
        network, trained = load_model(self.name)
        return network.backbone, trained

    @property
    def weights(self) -> dict[str, Tensor]:
        """Weights and buffers of its backbone, by name."""
        return dict(self._loaded[0].state_dict())

    def require_fitting(self, network: ModelConfig) -> None:
        """Refuse a network whose backbone has other weights than this model's, as one for another head may."""
        with torch.device("meta"), Unfilled():
            places = build_backbone(network, start=False).state_dict()
        problems = misfits(self.weights, places)
        if problems:
            own = self.config
            raise ValueError(
                f"from: the backbone {own.backbone} of {self.name} (model {own.model}, head {own.head}) does not fit "
                f"model {network.model} (head {network.head}): {problems[0]}; train with --model {own.model} or "
                "another with that head, or start from another model"
            )

    def describe(self, config: TrainConfig, classes: int) -> str:
        """Say what a training takes over from it."""
        backbone, trained = self._loaded
        weights = count_weights(backbone)
        same = (
            "as there" if self.config.image_size == (config.side, config.side) else f"not {self.config.image_size_text}"
        )
        data = "" if trained is None else f" (trained on {len(trained.thresholds)} classes)"
        return (
            f"the backbone {config.backbone}, {weights / 1e6:.1f} million weights, starts from {self.name}{data}; "
            f"images of {config.side}×{config.side} px, {same}; the head for {classes} classes is new"
        )


def starting_model(config: TrainConfig) -> StartingModel | None:
    """Return the model that a training starts from, of which nothing is read yet; None where there is none."""
    return None if config.start_from is None else StartingModel(config.start_from)


def with_starting_model(config: TrainConfig, start: StartingModel | None) -> TrainConfig:
    """Return the configuration with what was left open filled in, from the model to start from where there is one.

    Raises:
        ModelFileError: there is no such model.
        ValueError: it has another backbone than the one asked for, or takes other images than training gives.
    """
    if start is None:
        return dataclasses.replace(config, image_size=config.side)
    model = start.config
    if model.in_channels != _CHANNELS:
        kind = "grey images (1 channel)" if model.in_channels == 1 else f"images of {model.in_channels} channels"
        raise ValueError(
            f"from: {start.name} takes {kind}, but training gives colour ({_CHANNELS} channels); start from a model "
            "for colour images"
        )
    if config.backbone not in ("auto", model.backbone):
        raise ValueError(
            f"backbone: expected auto or {model.backbone}, the backbone of {start.name}, got {config.backbone}"
        )
    if config.image_size is None and model.image_size[0] != model.image_size[1]:
        raise ValueError(f"image_size: {start.name} has {model.image_size_text}; say which side to train with")
    normalisation = {"pixel_mean": list(model.pixel_mean or ()), "pixel_std": list(model.pixel_std or ())}
    return dataclasses.replace(
        config,
        image_size=model.image_size[0] if config.image_size is None else config.image_size,
        backbone=model.backbone,
        options={**normalisation, **config.options},
    )

"""Augment whole batches on the training device: random resized crop, horizontal flip, colour jitter.

A batch's augmentation is a function of (seed, epoch, step) alone: numbers are drawn on the CPU from a generator of
its own, so that a resumed run continues as if it had never stopped, the same on every device, whatever else draws
random numbers. kornia computes the pixels; its own augmentation classes draw from the global generator, and know no
labels. Crop and flip are one warp, so pixels are interpolated once.

Labels of objects outside of the crop are removed: `contextcaps.data.visibility` has the rule.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contextcaps.data.augmentation_config import AugmentationConfig
from contextcaps.data.problems import DataError
from contextcaps.data.visibility import BatchBoxes, visible_targets

__all__ = [
    "Augmentation",
    "AugmentationParameters",
    "AugmentedBatch",
    "augment_images",
    "draw_parameters",
]


@dataclasses.dataclass(frozen=True)
class AugmentationParameters:
    """Holds the augmentation of each image of a batch, in tensors on the CPU, where they are drawn."""

    crops: Tensor
    """[B, 4], float32: left, top, right, bottom of the crop, as fractions of the image's width and height."""
    flips: Tensor
    """[B], bool: mirrored left to right, after the crop."""
    brightness: Tensor
    """[B], float32: factor on the pixels."""
    contrast: Tensor
    """[B], float32: factor on the distance from the image's mean grey."""
    saturation: Tensor
    """[B], float32: factor on the distance from each pixel's own grey."""
    hue: Tensor
    """[B], float32: turn of the colour circle, as a share of it."""


@dataclasses.dataclass(frozen=True)
class AugmentedBatch:
    """Holds a batch after augmentation."""

    images: Tensor
    """[B, 3, H, W], of the dtype that went in."""
    targets: Tensor
    """[B, J], without the classes outside of the crop."""
    parameters: AugmentationParameters
    """Drawn for this batch."""


class Augmentation:
    """Augments batches; the augmentation of batch `step` of `epoch` depends on the seed and these two numbers alone.

    >>> augment = Augmentation(AugmentationConfig(), seed=0)
    >>> batch = augment(torch.rand(2, 3, 32, 32), torch.ones(2, 5), epoch=0, step=0)
    >>> batch.images.shape, batch.targets.shape
    (torch.Size([2, 3, 32, 32]), torch.Size([2, 5]))
    """

    def __init__(self, config: AugmentationConfig | None = None, seed: int = 0) -> None:
        self.config, self.seed = config or AugmentationConfig(), seed
        _kornia()  # raises before training starts, if it is missing

    def __call__(
        self,
        images: Tensor,
        targets: Tensor,
        *,
        epoch: int,
        step: int,
        boxes: BatchBoxes | None = None,
        masks: Tensor | None = None,
    ) -> AugmentedBatch:
        """Augment one batch.

        Args:
            images: [B, 3, H, W], uint8, or floating from 0 to 1; on the training device.
            targets: [B, J], any dtype.
            epoch, step: number of the epoch and of the batch in it. Processes that share an epoch take different seeds.
            boxes: the images' boxes, if they are known.
            masks: [B, Hm, Wm], integer: class index + 1, 0 for none; of any size, as crops are fractions. If known.
        """
        parameters = self.parameters(len(images), epoch, step)
        return AugmentedBatch(
            augment_images(images, parameters),
            visible_targets(targets, parameters.crops, boxes, masks, self.config.min_visible),
            parameters,
        )

    def parameters(self, count: int, epoch: int, step: int) -> AugmentationParameters:
        """Draw the parameters of the `count` images of a batch."""
        state = np.random.SeedSequence([self.seed, epoch, step]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))
        return draw_parameters(self.config, count, generator)


def draw_parameters(config: AugmentationConfig, count: int, generator: torch.Generator) -> AugmentationParameters:
    """Draw the augmentation of each of `count` images.

    The crop's area is uniform in `crop_scale`, the logarithm of its ratio uniform in that part of `crop_ratio` for
    which a crop of this area fits into the image, its place uniform.

    Args:
        config: the ranges to draw from.
        count: B.
        generator: on the CPU; the draws depend on its state alone.
    """
    chance = torch.rand(9, count, generator=generator, dtype=torch.float64)  # [9, B]
    low, high = config.crop_scale
    area = low + (high - low) * chance[0]  # [B]
    fits = -area.log()  # [B]: |log ratio| of the crops of this area that are exactly as wide or high as the image
    least = torch.maximum(torch.full_like(area, math.log(config.crop_ratio[0])), -fits).minimum(fits)
    greatest = torch.minimum(torch.full_like(area, math.log(config.crop_ratio[1])), fits).maximum(-fits)
    ratio = (least + (greatest - least) * chance[1]).exp()  # [B]
    width, height = (area * ratio).sqrt().clamp_max(1), (area / ratio).sqrt().clamp_max(1)  # [B]
    left, top = (1 - width) * chance[2], (1 - height) * chance[3]  # [B]
    crops = torch.stack([left, top, left + width, top + height], dim=1)  # [B, 4]
    signed = 2 * chance[5:] - 1  # [4, B]
    return AugmentationParameters(
        crops=crops.clamp(0, 1).float(),
        flips=chance[4] < config.flip,
        brightness=(1 + config.brightness * signed[0]).float(),
        contrast=(1 + config.contrast * signed[1]).float(),
        saturation=(1 + config.saturation * signed[2]).float(),
        hue=(config.hue * signed[3]).float(),
    )


def augment_images(images: Tensor, parameters: AugmentationParameters) -> Tensor:
    """Crop, resize to the size before, flip; then brightness, contrast, saturation and hue, always in this order.

    Args:
        images: [B, 3, H, W], uint8, or floating from 0 to 1.
        parameters: for B images.

    Returns:
        [B, 3, H, W] of the same dtype. Computed in float32 (float64 for float64); bytes are rounded.
    """
    count = len(parameters.crops)
    if images.ndim != 4 or images.shape[:2] != (count, 3) or min(images.shape[2:]) < 2:
        raise ValueError(f"images: expected shape [B={count}, 3, H ≥ 2, W ≥ 2], got {list(images.shape)}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ValueError(f"images: expected uint8, or floating numbers from 0 to 1, got {images.dtype}")
    kornia = _kornia()
    pixels = images if images.dtype == torch.float64 else images.float()
    if images.dtype == torch.uint8:
        pixels = pixels / 255
    height, width = images.shape[2:]
    # From pageable memory, more than 64 kB are copied to a CUDA device only when it has done all work before; so they
    # are computed there. Other devices may have no float64.
    where = images.device if images.is_cuda else torch.device("cpu")
    columns, rows = _source_coordinates(parameters, height, width, where)  # [B, W], [B, H]
    # Coordinates of pixel centres, computed here rather than by a matrix product, which accelerators round to 10 bits
    # where TF32 is on. With aligned corners kornia takes them as they are; with the border repeated, this is a resize.
    shape = (count, *images.shape[2:])
    pixels = kornia.geometry.transform.remap(
        pixels,
        columns.to(pixels)[:, None, :].expand(shape),
        rows.to(pixels)[:, :, None].expand(shape),
        mode="bilinear",
        padding_mode="border",
        align_corners=True,
    )
    for adjust, factors, neutral in (
        (kornia.enhance.adjust_brightness_accumulative, parameters.brightness, 1),
        (kornia.enhance.adjust_contrast_with_mean_subtraction, parameters.contrast, 1),
        (kornia.enhance.adjust_saturation_with_gray_subtraction, parameters.saturation, 1),
        (kornia.enhance.adjust_hue, 2 * math.pi * parameters.hue, 0),
    ):
        if bool((factors != neutral).any()):
            pixels = adjust(pixels, factors.to(pixels))
    if images.dtype == torch.uint8:
        return (pixels * 255).round().clamp(0, 255).to(torch.uint8)
    return pixels.to(images.dtype)


def _source_coordinates(
    parameters: AugmentationParameters, height: int, width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return where in the image each column [B, W] and row [B, H] of the result comes from, in pixels, float64.

    Pixel x covers x to x + 1, so its centre is at x + ½; the coordinates here are ½ less.
    """
    crops, flips = parameters.crops.to(device), parameters.flips.to(device)
    left, top, right, bottom = crops.double()[:, :, None].unbind(dim=1)  # [B, 1]
    across = (torch.arange(width, dtype=torch.float64, device=device) + 0.5) / width  # [W], fractions of the crop
    across = torch.where(flips[:, None], 1 - across, across)  # [B, W]
    down = (torch.arange(height, dtype=torch.float64, device=device) + 0.5) / height  # [H]
    return (left + (right - left) * across) * width - 0.5, (top + (bottom - top) * down) * height - 0.5


def _kornia() -> Any:
    """Import kornia, which is an extra."""
    try:
        import kornia.enhance
        import kornia.geometry
    except ImportError as error:
        raise DataError(f"augmentation needs kornia: pip install 'contextcaps[train]' ({error})") from None
    return kornia

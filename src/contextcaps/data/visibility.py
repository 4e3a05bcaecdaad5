"""Decide which labels stay when an image is cropped.

A label whose objects are outside of the crop would teach the network to see what is not there:

- Boxes known: a class stays if at least `min_visible` of the area of one of its boxes is inside the crop.
- No box of the class, but a mask with pixels of it: it stays if at least `min_visible` of these pixels, all of its
  objects together, is inside the crop. (A mask of classes cannot tell one object from the next.)
- Neither: it is kept, as is usual where only the labels are known. An unknown label stays unknown.

A crop smaller than `min_visible` of the image removes even a class that fills the whole image: the smallest crop
should be larger than that share, as it is by default in `AugmentationConfig`.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from contextcaps.data.sample import Boxes
from contextcaps.data.unknown import is_unknown

__all__ = ["BatchBoxes", "visible_targets"]


@dataclasses.dataclass(frozen=True)
class BatchBoxes:
    """Holds the boxes of a batch's images, N in all."""

    images: Tensor
    """[N], int64: index in the batch of the image that the box is in."""
    labels: Tensor
    """[N], int64: class index."""
    corners: Tensor
    """[N, 4], float32: left, top, right, bottom, as fractions of the image's width and height."""

    @classmethod
    def from_samples(cls, boxes: Sequence[Boxes | None]) -> "BatchBoxes":
        """Collect the boxes of one sample per image of the batch; None for an image without boxes."""
        known = [(index, each) for index, each in enumerate(boxes) if each is not None]
        return cls(
            torch.tensor([index for index, each in known for _ in each.labels], dtype=torch.int64),
            torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *(each.labels for _, each in known)])),
            torch.from_numpy(np.concatenate([np.zeros((0, 4), np.float32), *(each.corners for _, each in known)])),
        )

    def to(self, device: torch.device | str) -> "BatchBoxes":
        return BatchBoxes(self.images.to(device), self.labels.to(device), self.corners.to(device))


def visible_targets(
    targets: Tensor,
    crops: Tensor,
    boxes: BatchBoxes | None = None,
    masks: Tensor | None = None,
    min_visible: float = 0.25,
) -> Tensor:
    """Remove classes whose objects are outside of the crop from the targets; this file's docstring has the rule.

    A box without area is ignored, and so is the part of a box outside of the image. Classes are never added.

    Args:
        targets: [B, J], any dtype.
        crops: [B, 4], left, top, right, bottom, as fractions.
        boxes: on any device.
        masks: [B, Hm, Wm], integer; a pixel belongs to the crop if its centre does.
        min_visible: the share that must be inside.
    """
    if targets.ndim != 2 or len(targets) != len(crops):
        raise ValueError(f"targets: expected shape [B={len(crops)}, J], got {list(targets.shape)}")
    count, classes = targets.shape
    if masks is not None and (masks.ndim != 3 or len(masks) != count):
        raise ValueError(f"masks: expected shape [B={count}, H, W], got {list(masks.shape)}")
    if min_visible == 0 or (boxes is None and masks is None):
        return targets
    # Checked before the copy to the device: out of range on a GPU, they would end the process.
    # Those that lie there already come from a loader, whose source has checked them; looking would wait for the GPU.
    if masks is not None and masks.numel() and masks.device.type == "cpu":
        _require_range("masks", masks, classes + 1)
    if boxes is not None and len(boxes.labels) and boxes.labels.device.type == "cpu":
        _require_range("boxes.labels", boxes.labels, classes)
        _require_range("boxes.images", boxes.images, count)
    crops = crops.to(targets.device)
    visible = torch.full(targets.shape, math.nan, device=targets.device)  # [B, J]: share inside; nan: not known
    if masks is not None:
        visible = _visible_mask(masks.to(targets.device), crops, classes)
    if boxes is not None:
        in_boxes = _visible_boxes(boxes.to(targets.device), crops, classes)
        visible = torch.where(in_boxes.isnan(), visible, in_boxes)
    return targets.masked_fill((visible < min_visible) & ~is_unknown(targets), 0)  # NaN is not below anything


def _visible_boxes(boxes: BatchBoxes, crops: Tensor, classes: int) -> Tensor:
    """Return the greatest share of a box of class j inside image b's crop [B, J]; NaN where the class has no box."""
    corners = boxes.corners.float().clamp(0, 1)  # [N, 4]
    own = crops[boxes.images]  # [N, 4]: the crop of each box's image
    extent = (corners[:, 2:] - corners[:, :2]).clamp_min(0)  # [N, 2]
    inside = torch.minimum(corners[:, 2:], own[:, 2:]) - torch.maximum(corners[:, :2], own[:, :2])  # [N, 2]
    area, kept = extent.prod(dim=1), inside.clamp_min(0).prod(dim=1)  # [N]
    shares = torch.where(area > 0, kept / area, -1.0)  # [N]; indexing by `area > 0` would wait for the device
    share = torch.full((len(crops) * classes,), -1.0, device=crops.device)
    share.scatter_reduce_(0, boxes.images * classes + boxes.labels, shares, "amax")
    return share.masked_fill_(share < 0, math.nan).view(len(crops), classes)


def _visible_mask(masks: Tensor, crops: Tensor, classes: int) -> Tensor:
    """Return the share of class j's mask pixels inside image b's crop [B, J]; NaN where the class has none."""
    count, height, width = masks.shape
    columns = (torch.arange(width, device=masks.device) + 0.5) / width  # [W], centres
    rows = (torch.arange(height, device=masks.device) + 0.5) / height  # [H]
    across = (columns >= crops[:, 0, None]) & (columns < crops[:, 2, None])  # [B, W]
    down = (rows >= crops[:, 1, None]) & (rows < crops[:, 3, None])  # [B, H]
    inside = (down[:, :, None] & across[:, None, :]).view(count, -1)  # [B, H·W]
    values = masks.reshape(count, -1).to(torch.int64)  # [B, H·W]
    totals = torch.zeros(2, count, classes + 1, device=masks.device)  # whole, inside; index 0 holds pixels of no class
    totals[0].scatter_add_(1, values, torch.ones_like(inside, dtype=torch.float32))
    totals[1].scatter_add_(1, values, inside.float())
    whole, kept = totals[:, :, 1:]  # [B, J]
    return torch.where(whole > 0, kept / whole, math.nan)


def _require_range(name: str, values: Tensor, end: int) -> None:
    """Refuse values below 0 or from `end` on."""
    least, greatest = int(values.min()), int(values.max())
    if least < 0 or greatest >= end:
        raise ValueError(f"{name}: expected values from 0 to {end - 1}, got {least} to {greatest}")

"""Augmentation: reproducible, pixels where the parameters say, labels by the stated rule."""

import dataclasses
import math
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from contextcaps.data import Boxes
from contextcaps.data.augmentation import (
    Augmentation,
    AugmentationConfig,
    AugmentationParameters,
    augment_images,
    draw_parameters,
)
from contextcaps.data.unknown import UNKNOWN
from contextcaps.data.visibility import BatchBoxes, visible_targets

NEUTRAL = AugmentationConfig(crop_scale=(1, 1), flip=0, brightness=0, contrast=0, saturation=0, hue=0)
GEOMETRY = dataclasses.replace(NEUTRAL, crop_scale=(0.3, 1), flip=0.5)


def random_images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def one(parameters: AugmentationParameters, index: int) -> AugmentationParameters:
    """The parameters of one image of a batch."""
    fields = dataclasses.fields(parameters)
    return AugmentationParameters(**{each.name: getattr(parameters, each.name)[index : index + 1] for each in fields})


# Labels


def slow_targets(
    targets: np.ndarray, crops: np.ndarray, boxes: list[Boxes | None], masks: np.ndarray | None, least: float
) -> np.ndarray:
    """The rule, one image, class, box and pixel at a time."""
    kept = targets.copy()
    for image, (left, top, right, bottom) in enumerate(crops.tolist()):
        for label in np.flatnonzero(targets[image]).tolist():
            shares = []
            own = boxes[image]
            for each, (x0, y0, x1, y1) in zip(own.labels, own.corners.tolist(), strict=True) if own is not None else ():
                if each == label:
                    inside = max(0.0, min(x1, right) - max(x0, left)) * max(0.0, min(y1, bottom) - max(y0, top))
                    shares.append(inside / ((x1 - x0) * (y1 - y0)))
            if not shares and masks is not None:
                rows, columns = np.nonzero(masks[image] == label + 1)
                height, width = masks[image].shape
                if len(rows):
                    hits = sum(
                        left <= (x + 0.5) / width < right and top <= (y + 0.5) / height < bottom
                        for x, y in zip(columns.tolist(), rows.tolist(), strict=True)
                    )
                    shares.append(hits / len(rows))
            for share in shares:
                assume(abs(share - least) > 1e-4)  # the last bit is not what this is about
            if shares and max(shares) < least:
                kept[image, label] = 0
    return kept


@st.composite
def rectangles(draw: st.DrawFn) -> list[float]:
    """left, top, right, bottom in the unit square, at least 1/64 wide and high."""
    x, y = (sorted(draw(st.lists(st.integers(0, 64), min_size=2, max_size=2, unique=True))) for _ in range(2))
    return [x[0] / 64, y[0] / 64, x[1] / 64, y[1] / 64]


@given(st.data(), st.sampled_from([0.1, 0.25, 0.7, 1.0]), st.booleans(), st.booleans())
def test_labels_follow_the_crop(data: st.DataObject, least: float, with_boxes: bool, with_masks: bool) -> None:
    count, classes = data.draw(st.integers(1, 3)), 4
    targets = np.array(data.draw(st.lists(st.integers(0, 1), min_size=count * classes, max_size=count * classes)))
    targets = targets.reshape(count, classes)
    crops = np.array([data.draw(rectangles()) for _ in range(count)], dtype=np.float32)
    boxes: list[Boxes | None] = []
    for _ in range(count):
        labels = data.draw(st.lists(st.integers(0, classes - 1), max_size=4)) if with_boxes else []
        corners = np.array([data.draw(rectangles()) for _ in labels], dtype=np.float32).reshape(-1, 4)
        boxes.append(Boxes(np.array(labels, dtype=np.int64), corners) if labels else None)
    masks = None
    if with_masks:
        cells = data.draw(st.lists(st.integers(0, classes), min_size=count * 30, max_size=count * 30))
        masks = np.array(cells, dtype=np.int32).reshape(count, 5, 6)
    expected = slow_targets(targets, crops, boxes, masks, least)
    found = visible_targets(
        torch.from_numpy(targets),
        torch.from_numpy(crops),
        BatchBoxes.from_samples(boxes) if with_boxes else None,
        None if masks is None else torch.from_numpy(masks),
        least,
    )
    assert found.tolist() == expected.tolist()


def test_labels_without_places_are_kept() -> None:
    targets = torch.ones(2, 3)
    crops = torch.tensor([[0, 0, 0.1, 0.1]] * 2)
    assert visible_targets(targets, crops) is targets
    boxes = BatchBoxes.from_samples([Boxes(np.array([1]), np.array([[0.5, 0.5, 1, 1]], np.float32)), None])
    assert visible_targets(targets, crops, boxes).tolist() == [[1, 0, 1], [1, 1, 1]]
    assert visible_targets(targets, crops, boxes, min_visible=0) is targets


def test_boxes_come_before_masks() -> None:
    """One of two objects is wholly inside: its box says so, the mask of both together only knows half."""
    targets, crops = torch.ones(1, 1), torch.tensor([[0, 0, 0.5, 1.0]])
    boxes = BatchBoxes.from_samples([Boxes(np.zeros(2, int), np.array([[0, 0, 0.2, 1], [0.6, 0, 1, 1]], np.float32))])
    mask = torch.tensor([[[1, 0, 0, 1, 1, 1]]])
    assert visible_targets(targets, crops, None, mask, 0.5).tolist() == [[0]]
    assert visible_targets(targets, crops, boxes, mask, 0.5).tolist() == [[1]]


def test_an_unknown_label_stays_unknown_outside_of_the_crop() -> None:
    targets, crops = torch.tensor([[UNKNOWN, 1, 0]], dtype=torch.uint8), torch.tensor([[0, 0, 0.5, 1.0]])
    mask = torch.tensor([[[0, 0, 1, 2]]])  # the first two classes are in the other half
    assert visible_targets(targets, crops, None, mask).tolist() == [[UNKNOWN, 0, 0]]


def test_boxes_without_area_or_beyond_the_image() -> None:
    targets, crops = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[0, 0, 0.5, 1.0]])
    corners = np.array([[0.7, 0.7, 0.7, 0.9], [-1, 0, 0.2, 1]], np.float32)
    boxes = BatchBoxes.from_samples([Boxes(np.array([0, 1]), corners)])
    assert visible_targets(targets, crops, boxes, min_visible=1.0).tolist() == [[True, True]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32])
def test_targets_keep_their_dtype(dtype: torch.dtype) -> None:
    boxes = BatchBoxes.from_samples([Boxes(np.array([0]), np.array([[0.9, 0.9, 1, 1]], np.float32))])
    found = visible_targets(torch.ones(1, 2, dtype=dtype), torch.tensor([[0, 0, 0.5, 0.5]]), boxes)
    assert found.dtype == dtype
    assert found.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"targets": torch.ones(3, 2)}, r"targets: expected shape \[B=1, J\], got \[3, 2\]"),
        ({"masks": torch.zeros(2, 4, 4)}, r"masks: expected shape \[B=1, H, W\], got \[2, 4, 4\]"),
        ({"masks": torch.full((1, 4, 4), 3)}, "masks: expected values from 0 to 2, got 3 to 3"),
        (
            {"boxes": BatchBoxes(torch.tensor([0]), torch.tensor([2]), torch.zeros(1, 4))},
            "boxes.labels: expected values from 0 to 1, got 2 to 2",
        ),
        (
            {"boxes": BatchBoxes(torch.tensor([1]), torch.tensor([0]), torch.zeros(1, 4))},
            "boxes.images: expected values from 0 to 0, got 1 to 1",
        ),
    ],
)
def test_bad_targets_boxes_and_masks(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        visible_targets(**{"targets": torch.ones(1, 2), "crops": torch.tensor([[0, 0, 1.0, 1.0]]), **arguments})


# Images


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_neutral_settings_change_nothing(dtype: torch.dtype) -> None:
    images = random_images(3, 3, 20, 33)
    images = images if dtype == torch.uint8 else (images.double() / 255).to(dtype)
    batch = Augmentation(NEUTRAL)(images, torch.ones(3, 2), epoch=0, step=0)
    assert batch.images.dtype == dtype
    assert batch.images.shape == images.shape
    torch.testing.assert_close(batch.images, images, atol=0 if dtype == torch.uint8 else 1e-5, rtol=0)


def test_exact_crop_and_flip() -> None:
    """A crop of a quarter of the image at whole pixels, doubled: pixel pairs keep their mean, mirrored or not."""
    images = random_images(2, 3, 16, 16).double() / 255
    neutral = draw_parameters(NEUTRAL, 2, torch.Generator())
    parameters = dataclasses.replace(
        neutral, crops=torch.tensor([[0.25, 0.5, 0.75, 1.0]] * 2), flips=torch.tensor([False, True])
    )
    found = augment_images(images, parameters)
    crop = images[:, :, 8:16, 4:12]
    torch.testing.assert_close(
        found[:, :, 1:-1, 1:-1].unfold(2, 2, 2).unfold(3, 2, 2).mean(dim=(-2, -1))[0],
        crop[0].unfold(1, 2, 1).unfold(2, 2, 1).mean(dim=(-2, -1)),
    )
    plain = augment_images(images, dataclasses.replace(parameters, flips=torch.tensor([False, False])))
    torch.testing.assert_close(found[1], plain[1].flip(-1))


@given(st.integers(0, 10_000), st.integers(3, 28), st.integers(3, 20))
def test_a_marked_pixel_moves_where_the_parameters_say(seed: int, column: int, row: int) -> None:
    height, width = 24, 32
    images = torch.zeros(1, 3, height, width)
    images[:, :, row, column] = 1
    parameters = draw_parameters(GEOMETRY, 1, torch.Generator().manual_seed(seed))
    left, top, right, bottom = parameters.crops[0].tolist()
    x, y = ((column + 0.5) / width - left) / (right - left), ((row + 0.5) / height - top) / (bottom - top)
    x = 1 - x if parameters.flips[0] else x
    assume(0.1 < x < 0.9)
    assume(0.1 < y < 0.9)
    light = augment_images(images, parameters)[0, 0].double()
    light = light / light.sum()
    centre_x = float((light.sum(dim=0) * (torch.arange(width) + 0.5)).sum()) / width
    centre_y = float((light.sum(dim=1) * (torch.arange(height) + 0.5)).sum()) / height
    assert abs(centre_x - x) < 0.6 / width  # the mark's tent is sampled at pixels only
    assert abs(centre_y - y) < 0.6 / height


def test_colours() -> None:
    """Each step by its formula: grey is 0.299 R + 0.587 G + 0.114 B; half a turn of the hue makes red cyan."""
    images = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    neutral = draw_parameters(NEUTRAL, 1, torch.Generator())
    grey = (images * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)

    def changed(**factors: float) -> torch.Tensor:
        tensors = {name: torch.tensor([factor]) for name, factor in factors.items()}
        return augment_images(images, dataclasses.replace(neutral, **tensors))

    close = {"atol": 1e-6, "rtol": 0}
    torch.testing.assert_close(changed(brightness=0.5), images * 0.5, **close)
    torch.testing.assert_close(changed(contrast=0.5), (images + grey.mean()) / 2, **close)
    torch.testing.assert_close(changed(saturation=0.0), grey.expand_as(images), **close)
    red = torch.tensor([1.0, 0, 0]).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    cyan = augment_images(red, dataclasses.replace(neutral, hue=torch.tensor([0.5])))
    torch.testing.assert_close(cyan, 1 - red, **close)


def test_whole_batches_equal_single_images() -> None:
    images = random_images(64, 3, 64, 64, seed=1)
    parameters = Augmentation(seed=3).parameters(64, 0, 0)
    augment_images(images, parameters)
    start = time.perf_counter()
    whole = augment_images(images, parameters)
    middle = time.perf_counter()
    single = torch.cat([augment_images(images[i : i + 1], one(parameters, i)) for i in range(len(images))])
    end = time.perf_counter()
    print(
        f"batch of 64 at 64 px: {64 / (middle - start):.0f} images/s, {(end - middle) / (middle - start):.1f} × as fast"
    )
    assert (whole.int() - single.int()).abs().max() <= 1


# Numbers


def test_the_same_epoch_and_step_give_the_same_batch() -> None:
    images, targets = random_images(8, 3, 32, 32), torch.ones(8, 4)
    first = Augmentation(seed=5)(images, targets, epoch=2, step=7)
    torch.rand(100)
    torch.manual_seed(9)
    again = Augmentation(seed=5)(images, targets, epoch=2, step=7)
    assert torch.equal(first.images, again.images)
    for other in (
        Augmentation(seed=6)(images, targets, epoch=2, step=7),
        Augmentation(seed=5)(images, targets, epoch=3, step=7),
        Augmentation(seed=5)(images, targets, epoch=2, step=8),
    ):
        assert not torch.equal(first.parameters.crops, other.parameters.crops)


def test_random_numbers_elsewhere_are_left_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    Augmentation()(random_images(2, 3, 16, 16), torch.ones(2, 1), epoch=0, step=0)
    assert torch.equal(torch.rand(3), expected)


@given(
    st.tuples(st.floats(0.05, 1), st.floats(0.05, 1)).map(sorted),
    st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)).map(sorted),
)
def test_crops_are_within_their_ranges(scale: list[float], ratio: list[float]) -> None:
    config = AugmentationConfig(crop_scale=(scale[0], scale[1]), crop_ratio=(ratio[0], ratio[1]))
    left, top, right, bottom = draw_parameters(config, 200, torch.Generator().manual_seed(0)).crops.double().T
    assert float(min(left.min(), top.min())) >= 0
    assert float(max(right.max(), bottom.max())) <= 1
    area, stretch = (right - left) * (bottom - top), (right - left) / (bottom - top)
    assert float(area.min()) >= scale[0] - 1e-5
    assert float(area.max()) <= scale[1] + 1e-5
    # A stretch that no crop of this area has gives way to the nearest that fits.
    assert float((stretch.log().abs() + area.log()).max()) <= 1e-5
    wrong = (stretch < ratio[0] * (1 - 1e-5)) | (stretch > ratio[1] * (1 + 1e-5))
    nearest = torch.where(stretch < ratio[0], math.log(ratio[0]), -math.log(ratio[1]))
    assert bool((nearest >= -area.log() - 1e-5)[wrong].all())


def test_ranges_of_flips_and_colours() -> None:
    config = AugmentationConfig(flip=0.25, brightness=0.3, contrast=0.1, saturation=0.0, hue=0.05)
    drawn = draw_parameters(config, 4000, torch.Generator().manual_seed(0))
    assert abs(float(drawn.flips.double().mean()) - 0.25) < 0.03
    for factors, amount in ((drawn.brightness - 1, 0.3), (drawn.contrast - 1, 0.1), (drawn.hue, 0.05)):
        assert float(factors.abs().max()) <= amount + 1e-6
        assert float(factors.max() - factors.min()) > 1.9 * amount
    assert bool((drawn.saturation == 1).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop_scale": (0.0, 1.0)}, "crop_scale: expected 0 < least ≤ greatest ≤ 1"),
        ({"crop_scale": (0.5, 1.5)}, "crop_scale"),
        ({"crop_ratio": (2.0, 0.5)}, "crop_ratio: expected 0 < least ≤ greatest, got"),
        ({"crop_ratio": (1.0, math.inf)}, "crop_ratio"),
        ({"flip": 1.5}, "flip: expected a number from 0 to 1, got 1.5"),
        ({"hue": 0.6}, "hue: expected a number from 0 to 0.5"),
        ({"brightness": -0.1}, "brightness"),
        ({"contrast": math.nan}, "contrast"),
        ({"min_visible": 2}, "min_visible"),
    ],
)
def test_bad_settings(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AugmentationConfig(**options)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 1, 8, 8), r"images: expected shape \[B=2, 3, H ≥ 2, W ≥ 2\], got \[2, 1, 8, 8\]"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int32), "images: expected uint8, or floating numbers"),
    ],
)
def test_bad_images(images: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augmentation()(images, torch.ones(2, 2), epoch=0, step=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_the_same_on_an_accelerator() -> None:
    images, targets, masks = random_images(16, 3, 64, 64), torch.ones(16, 3), random_images(16, 8, 8) % 4
    boxes = BatchBoxes.from_samples([Boxes(np.array([0]), np.array([[0, 0, 0.3, 0.3]], np.float32))] * 16)
    here = Augmentation()(images, targets, epoch=0, step=0, boxes=boxes, masks=masks)
    there = Augmentation()(images.cuda(), targets.cuda(), epoch=0, step=0, boxes=boxes, masks=masks.cuda())
    assert there.images.is_cuda
    assert torch.equal(there.targets.cpu(), here.targets)
    assert (there.images.cpu().int() - here.images.int()).abs().max() <= 1


@pytest.mark.long
def test_torchvision_is_not_imported() -> None:
    """It fails beside a torch of another build, and is not needed: with it out of reach, augmentation runs."""
    program = (
        "import sys; sys.modules['torchvision'] = None; import torch; from contextcaps.data.augmentation import *; "
        "print(Augmentation()(torch.rand(1, 3, 8, 8), torch.ones(1, 1), epoch=0, step=0).images.shape)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == "torch.Size([1, 3, 8, 8])", ended.stderr


def test_without_kornia(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia.enhance", None)
    with pytest.raises(ValueError, match=r"augmentation needs kornia: pip install 'contextcaps\[train\]'"):
        Augmentation()

"""Are explanations true: parts of logits beside Grad-CAM, Grad-CAM++, HiResCAM and integrated gradients.

    pip install -e '.[peers]'
    python benchmarks/faithfulness.py 'shards:val.tar' --model coco80
    python benchmarks/faithfulness.py 'ade20k:PATH?unlabelled=keep' --split val --model RUN

Of each drawn image one of its classes is drawn (seed 0) and explained by each method on the grid of the backbone's last
features; integrated gradients, of the pixels, are summed over each cell. `capsules alone` leaves the global branch out,
`centre` points at the middle of the image, and `random` gives random parts.

- pointing: does the middle of the strongest cell lie in the mask, or a box, of the class?
- energy: the share of all that speaks for the class (positive parts) that lies in them.
- deletion (less is better): the mean score while cells are blanked, the strongest first; blank is the training mean.
- insertion (more is better): the same from a blank image, while cells are put back. Both as areas under curves of
  `STEPS` steps (Petsiuk et al. 2018, https://arxiv.org/abs/1806.07421), all versions of an image in one batch; over the
  first `--curves` images.
- forwards: the median time of one explanation, from an image to its grid, in times of tagging the same image. One after
  the other on the same machine, so that ratios hold if it is busy. All methods have the same folded backbone.

95 % intervals: bootstrap over images. `--sheets FOLDER` writes contact sheets of the best, median and worst by energy.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

import contextcaps
from contextcaps.data import Sample, open_source
from contextcaps.data.images import decode
from contextcaps.evaluation.scoring import class_order
from contextcaps.extras import import_extra
from contextcaps.models.decomposition import decompose
from contextcaps.tagging import Tagger
from contextcaps.tagging.explanation import spread
from contextcaps.tagging.heat_maps import paint_heat_map
from contextcaps.tagging.pixels import pixels_of

Method = Callable[[Tensor, int], np.ndarray]
"""From an image [1, 3, H, W], uint8, and a class to its parts on the grid [h, w]."""
STEPS = 7
"""Of the curves of deletion and insertion: on a grid of 7×7, so many cells each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--split")
    parser.add_argument("--model", default="coco80")
    parser.add_argument("--images", type=int, default=300, help="so many of them, drawn with seed 0")
    parser.add_argument("--curves", type=int, default=300, help="of which so many have curves of deletion")
    parser.add_argument("--minutes", type=float, default=60, help="stop after so many; then there are fewer images")
    parser.add_argument("--gradients", type=int, default=10, help="steps of integrated gradients")
    parser.add_argument("--skip", nargs="*", default=[], help="methods to leave out, such as 'integrated gradients'")
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--sheets", type=Path, help="write contact sheets; they hold photographs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    tagger = contextcaps.load(arguments.model, "cpu", runtime="torch")
    source = open_source(
        arguments.data, on_bad="skip", **({} if arguments.split is None else {"split": arguments.split})
    )
    order = class_order(tagger.network, source)
    methods = methods_of(tagger, arguments.gradients)
    methods = {name: method for name, method in methods.items() if name not in arguments.skip}
    random = np.random.default_rng(0)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in methods}
    shown = []
    done, started = 0, time.perf_counter()
    for index in random.permutation(len(source)).tolist():
        sample = source.sample(index)
        pixels = torch.from_numpy(pixels_of(sample.image, tagger.config.image_size)[None])  # [1, 3, H, W]
        regions = regions_of(sample, (pixels.shape[2], pixels.shape[3]))
        if not regions:
            continue
        label = list(regions)[int(random.integers(len(regions)))]
        place = order.index(label)
        begun = time.perf_counter()
        tagger.scores(pixels.numpy())
        forward = time.perf_counter() - begun
        grids = {}
        for name, method in methods.items():
            begun = time.perf_counter()
            grids[name] = method(pixels, place)  # [h, w]
            values = {"forwards": (time.perf_counter() - begun) / forward, **located(grids[name], regions[label])}
            for key, value in values.items():
                found[name].setdefault(key, []).append(value)
        shown.append((found["parts"]["energy"][-1], sample, label, grids["parts"]))
        if done < arguments.curves:
            for name, areas in faded(tagger, pixels, place, grids).items():
                for key, value in areas.items():
                    found[name].setdefault(key, []).append(value)
        done += 1
        if done == arguments.images or time.perf_counter() - started > 60 * arguments.minutes:
            break
    print(f"{done} images, of which {min(done, arguments.curves)} with curves")
    rows = {name: summary(values, arguments.resamples) for name, values in found.items()}
    peers = [name for name in rows if name not in ("parts", "random", "centre")]
    for name, row in rows.items():
        print(name, json.dumps(row))
    for key in ("pointing", "energy", "deletion", "insertion")[: 4 if arguments.curves else 2]:
        for name in peers:
            print(f"parts − {name}, {key}: {difference(found, name, key, arguments.resamples)}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found))
    if arguments.sheets is not None:
        write_sheets(shown, source.classes, arguments.sheets)


class Scored(nn.Module):
    """A network from pixels [B, 3, H, W], 0…255 as floats, to logits, with a layer whose output is the features."""

    def __init__(self, tagger: Tagger) -> None:
        super().__init__()
        self.network, self.layer = tagger.network.folded().requires_grad_(False), nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        features = self.network.features(images / 255)
        if not features.requires_grad:  # no gradient is computed for the backbone unless that of pixels is
            features.requires_grad_()
        output = self.network.from_features(self.layer(features))
        return torch.logit(output.scores, eps=1e-6) if output.logits is None else output.logits  # [B, J]


def methods_of(tagger: Tagger, gradients: int) -> dict[str, Method]:
    peers = import_extra("pytorch_grad_cam", "peers", "explanations by Grad-CAM")
    captum = import_extra("captum.attr", "peers", "explanations by integrated gradients")
    scored = Scored(tagger).eval()
    with torch.no_grad():
        size = tagger.network.config.image_size
        grid = tagger.network.features(torch.zeros(1, 3, *size)).shape[2:]

    def parts(image: Tensor, place: int) -> np.ndarray:
        with torch.inference_mode():
            (found,) = decompose(tagger.network, tagger.features(image), None)
        capsules = found.evidence[0, place].sum(dim=0).numpy()
        if found.branch is None:
            return capsules
        branch = found.branch[0, place].numpy()
        finest = tuple(int(np.lcm(*sides)) for sides in zip(capsules.shape, branch.shape, strict=True))
        return spread(capsules, finest) + spread(branch, finest)

    def capsules_alone(image: Tensor, place: int) -> np.ndarray:
        with torch.inference_mode():
            (found,) = decompose(tagger.network, tagger.features(image), None)
        return found.evidence[0, place].sum(dim=0).numpy()

    def by_cam(kind: type) -> Method:
        cam = kind(model=scored, target_layers=[scored.layer])

        def method(image: Tensor, place: int) -> np.ndarray:
            # What the call itself computes, without resizing the grid to the image at the end.
            scores = cam.activations_and_grads(image.float())
            scores[0, place].backward()
            kept, slopes = cam.activations_and_grads.activations[0], cam.activations_and_grads.gradients[0]
            return cam.get_cam_image(image, scored.layer, [], kept.numpy(), slopes.numpy(), False)[0]

        return method

    integrated = captum.IntegratedGradients(scored)
    blank = blank_of(tagger).float()  # [1, 3, 1, 1]

    def by_integrated(image: Tensor, place: int) -> np.ndarray:
        pixels = image.float().requires_grad_()
        base = blank.expand_as(pixels).contiguous()
        found = integrated.attribute(pixels, base, target=place, n_steps=gradients, internal_batch_size=gradients)
        height, width = (side // cells for side, cells in zip(pixels.shape[2:], grid, strict=True))
        return (
            found[0]
            .sum(dim=0)
            .unflatten(0, (grid[0], height))
            .unflatten(2, (grid[1], width))
            .sum(dim=(1, 3))
            .detach()
            .numpy()
        )

    random = np.random.default_rng(1)

    def centre(image: Tensor, place: int) -> np.ndarray:
        rows, columns = (np.arange(side) - (side - 1) / 2 for side in grid)
        return np.exp(-(rows[:, None] ** 2 + columns**2) / 8)

    methods: dict[str, Method] = {"parts": parts}
    if tagger.network.field is not None and tagger.network.field.global_branch is not None:
        methods["capsules alone"] = capsules_alone
    for kind in (peers.GradCAM, peers.GradCAMPlusPlus, peers.HiResCAM):
        methods[kind.__name__] = by_cam(kind)
    methods["integrated gradients"] = by_integrated
    methods["centre"] = centre
    methods["random"] = lambda image, place: random.random(tuple(grid))
    return methods


def blank_of(tagger: Tagger) -> Tensor:
    """Return the mean pixel of training, [1, 3, 1, 1], 0…255."""
    mean = tagger.network.config.pixel_mean or (0.5, 0.5, 0.5)
    return (255 * torch.tensor(mean))[None, :, None, None]


def regions_of(sample: Sample, size: tuple[int, int]) -> dict[int, np.ndarray]:
    """Return for each class of an image which pixels [H, W] lie in its mask, or in one of its boxes, if any do."""
    height, width = size
    found: dict[int, np.ndarray] = {}
    if sample.mask is not None:
        mask = sample.mask()  # [H', W'], classes from 1 on
        rows, columns = (np.arange(side) * own // side for side, own in zip(size, mask.shape, strict=True))
        mask = mask[rows][:, columns]  # [H, W]
        found = {label: mask == label + 1 for label in sample.labels}
    elif sample.boxes is not None:
        for label, corners in zip(sample.boxes.labels.tolist(), sample.boxes.corners.tolist(), strict=True):
            left, top, right, bottom = corners
            rows = slice(int(np.floor(top * height)), max(int(np.floor(top * height)) + 1, round(bottom * height)))
            columns = slice(int(np.floor(left * width)), max(int(np.floor(left * width)) + 1, round(right * width)))
            found.setdefault(label, np.zeros(size, dtype=bool))[rows, columns] = True
    return {label: found[label] for label in sample.labels if label in found and found[label].any()}


def located(cells: np.ndarray, inside: np.ndarray) -> dict[str, float]:
    """Return whether the strongest cell points into the object, and the share of positive parts within it."""
    row, column = np.unravel_index(int(cells.argmax()), cells.shape)
    y = int((row + 0.5) * inside.shape[0] / cells.shape[0])
    x = int((column + 0.5) * inside.shape[1] / cells.shape[1])
    positive = np.maximum(cells, 0)
    rows = np.arange(inside.shape[0]) * cells.shape[0] // inside.shape[0]
    columns = np.arange(inside.shape[1]) * cells.shape[1] // inside.shape[1]
    fine = positive[rows][:, columns]
    energy = float((fine * inside).sum() / fine.sum()) if fine.sum() > 0 else 0.0
    return {"pointing": float(inside[y, x]), "energy": energy}


def faded(tagger: Tagger, image: Tensor, place: int, grids: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return the areas under the curves of deletion and insertion; methods of the same order are computed once."""
    height, width = image.shape[2:]
    blank = blank_of(tagger).round().to(torch.uint8).expand_as(image)[0]  # [3, H, W]
    ranks = {name: (-cells).argsort(axis=None, kind="stable").argsort(kind="stable") for name, cells in grids.items()}
    starts: dict[bytes, int] = {}
    versions = [image[0], blank]
    for name, cells in grids.items():
        if ranks[name].tobytes() in starts:
            continue
        starts[ranks[name].tobytes()] = len(versions)
        rows, columns = np.arange(height) * cells.shape[0] // height, np.arange(width) * cells.shape[1] // width
        order = torch.from_numpy(
            ranks[name].reshape(cells.shape)[rows][:, columns].copy()
        )  # [H, W], 0 for the strongest
        for step in range(1, STEPS):
            gone = order < round(step * cells.size / STEPS)
            versions += [torch.where(gone, blank, image[0]), torch.where(gone, image[0], blank)]
    scores = tagger.scores(torch.stack(versions).numpy())[:, place]
    whole, nothing = scores[:2]
    areas = {}
    for name in grids:
        first = starts[ranks[name].tobytes()]
        steps = scores[first : first + 2 * (STEPS - 1)]
        areas[name] = {
            "deletion": float(np.trapezoid([whole, *steps[::2], nothing])) / STEPS,
            "insertion": float(np.trapezoid([nothing, *steps[1::2], whole])) / STEPS,
        }
    return areas


def resampled(values: list[float], resamples: int) -> np.ndarray:
    numbers = np.array(values)
    rows = np.random.default_rng(0).integers(len(numbers), size=(resamples, len(numbers)))
    return numbers[rows].mean(axis=1)


def summary(values: dict[str, list[float]], resamples: int) -> dict[str, list[float]]:
    """Return each figure with its interval; times as medians."""
    found = {}
    for key, each in values.items():
        if key == "forwards":
            found[key] = [round(float(np.median(each)), 2)]
        else:
            low, high = np.quantile(resampled(each, resamples), (0.025, 0.975))
            found[key] = [round(float(number), 3) for number in (np.mean(each), low, high)]
    return found


def difference(found: dict[str, dict[str, list[float]]], name: str, key: str, resamples: int) -> list[float]:
    lead = np.array(found["parts"][key]) - np.array(found[name][key])
    low, high = np.quantile(resampled(lead.tolist(), resamples), (0.025, 0.975))
    return [round(float(number), 3) for number in (lead.mean(), low, high)]


def write_sheets(
    shown: list[tuple[float, Sample, int, np.ndarray]], classes: tuple[str, ...], folder: Path, side: int = 200
) -> None:
    """Write the best, the median and the worst explanations of 200, each as the image with its cells and the boxes."""
    folder.mkdir(parents=True, exist_ok=True)
    ranked = sorted(shown[:200], key=lambda each: -each[0])
    middle = len(ranked) // 2
    for name, chosen in (("best", ranked[:30]), ("median", ranked[middle - 15 : middle + 15]), ("worst", ranked[-30:])):
        sheet = Image.new("RGB", (6 * side, 5 * (side + 18)), "white")
        draw = ImageDraw.Draw(sheet)
        for place, (energy, sample, label, cells) in enumerate(chosen):
            x, y = place % 6 * side, place // 6 * (side + 18)
            pixels = np.asarray(Image.fromarray(decode(sample.image)).convert("RGB").resize((side - 4, side - 4)))
            sheet.paste(Image.fromarray(paint_heat_map(cells, pixels, float(np.abs(cells).max()))), (x, y))
            inside = regions_of(sample, (side - 4, side - 4))[label]
            edges = inside ^ (
                np.roll(inside, 2, 0) & np.roll(inside, -2, 0) & np.roll(inside, 2, 1) & np.roll(inside, -2, 1)
            )
            sheet.paste((0, 200, 80), (x, y), Image.fromarray((255 * (edges & inside)).astype(np.uint8)))
            draw.text((x + 2, y + side - 2), f"{classes[label]} {energy:.2f}", "black")
        sheet.save(folder / f"{name}.png")


if __name__ == "__main__":
    main()

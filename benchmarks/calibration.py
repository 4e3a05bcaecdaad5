"""Compare ways to calibrate scores, fitted on half of the validation images and measured on the other half.

    python benchmarks/calibration.py --predict runs/coco coco.npz        # scores of the run's two parts, uncalibrated
    python benchmarks/calibration.py coco.npz corel5k.npz

A prediction file has val_scores, val_targets, test_scores and test_targets, each [n, J], and whether the scores are
sigmoids of logits rather than lengths of capsules. Prints Markdown tables.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from contextcaps.capsules import length_logits, score_logits
from contextcaps.evaluation.metrics import count_calibration, fit_platt_scaling
from contextcaps.models.files import read_config

Map = Callable[[Tensor], Tensor]
"""From logits to calibrated ones."""
PULLS = (1.0, 10.0, 100.0, 1000.0)
"""How strongly a class is drawn to what is best for all; the best of a cross-validation among the images to fit to."""
HALVINGS = 5


def predict(run: Path, file: Path) -> None:
    """Write the prediction file of a run, with scores as they are without calibration."""
    import contextcaps

    arrays = {}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(shutil.copytree(run / "model", Path(folder, "model")))
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "calibration": None}))
        for part in ("val", "test"):
            found = contextcaps.evaluate(model, split=part, out=folder, resamples=2, prepare=False).predictions
            arrays |= {f"{part}_scores": found.scores.numpy(), f"{part}_targets": found.targets.numpy()}
    sigmoids = read_config(run / "model" / "config.json").scores_are_sigmoids
    np.savez_compressed(file, sigmoids=np.array(sigmoids), **arrays)


def minimise(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Return the values with the lowest loss."""
    values = start.clone().requires_grad_()
    search = torch.optim.LBFGS([values], max_iter=300, tolerance_change=1e-12, line_search_fn="strong_wolfe")

    def closure() -> float:
        search.zero_grad()
        found = loss(values)
        found.backward()
        return float(found.detach())

    search.step(closure)
    return values.detach()


def one_temperature(logits: Tensor, targets: Tensor) -> Map:
    """Fit one temperature for all classes."""
    log_scale = minimise(lambda v: cross_entropy(v.exp() * logits, targets), torch.zeros(1, dtype=torch.float64))
    return lambda x: log_scale.exp() * x


def scale_and_shift(logits: Tensor, targets: Tensor) -> Map:
    """Fit one scale and one shift for all classes, as training does."""
    scale, shift = fit_platt_scaling(logits, targets)
    return lambda x: scale * x + shift


def drawn_to(centre: tuple[float, float], pull: float, shifts: bool) -> Callable[[Tensor, Tensor], Map]:
    """Return a fit of each class's log-scale, and of its shift where asked for, drawn to the scale and shift of all."""
    middle = torch.tensor([[np.log(centre[0])], [centre[1]]], dtype=torch.float64)  # [2, 1]

    def fit(logits: Tensor, targets: Tensor) -> Map:
        def loss(free: Tensor) -> Tensor:
            mapped = free[0].exp() * logits + (free[1] if shifts else middle[1])  # [n, J]
            apart = (free - middle).square().sum()
            return (cross_entropy(mapped, targets, reduction="sum") + pull / 2 * apart) / targets.numel()

        found = minimise(loss, middle.expand(2, logits.shape[1]))  # [2, J]
        return lambda x: found[0].exp() * x + found[1]

    return fit


def per_class(logits: Tensor, targets: Tensor, shifts: bool) -> Map:
    """Fit a scale for each class, and a shift where asked for, drawn to those of all as cross-validation says."""
    alone = float(one_temperature(logits, targets)(torch.ones(1)))
    centre = fit_platt_scaling(logits, targets) if shifts else (alone, 0.0)
    fold = torch.arange(len(logits)) % 3  # [n]
    losses = torch.zeros(len(PULLS))
    for index, pull in enumerate(PULLS):
        for number in range(3):
            own, other = fold != number, fold == number
            found = drawn_to(centre, pull, shifts)(logits[own], targets[own])
            losses[index] += cross_entropy(found(logits[other]), targets[other], reduction="sum")
    return drawn_to(centre, PULLS[int(losses.argmin())], shifts)(logits, targets)


WAYS: dict[str, Callable[[Tensor, Tensor], Map]] = {
    "nothing": lambda logits, targets: lambda x: x,
    "one T": one_temperature,
    "one scale and shift": scale_and_shift,
    "T per class": lambda logits, targets: per_class(logits, targets, shifts=False),
    "scale and shift per class": lambda logits, targets: per_class(logits, targets, shifts=True),
}


def figures(logits: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return log-loss in thousandths of a nat for each pair, and ECE in percent."""
    error = float(count_calibration(logits.sigmoid(), targets).summary()["ECE"])
    return 1000 * float(cross_entropy(logits, targets)), 100 * error


def compare(file: Path) -> tuple[list[str], list[str]]:
    """Return the rows of one prediction file: fitted on half of the validation images, and on all of them."""
    with np.load(file) as stored:
        logits_of = (lambda each: score_logits(each, 1e-7)) if stored["sigmoids"] else length_logits
        val, test = (logits_of(torch.from_numpy(stored[f"{part}_scores"]).double()) for part in ("val", "test"))
        val_truth, truth = (torch.from_numpy(stored[f"{part}_targets"]).double() for part in ("val", "test"))
    orders = [torch.randperm(len(val), generator=torch.Generator().manual_seed(seed)) for seed in range(HALVINGS)]
    halves, whole = [file.stem], [file.stem]
    for way in WAYS.values():
        held = [
            figures(way(val[own], val_truth[own])(val[other]), val_truth[other])
            for own, other in (order.tensor_split(2) for order in orders)
        ]
        halves.append("{:.1f}, {:.2f}".format(*np.mean(held, axis=0)))
        whole.append("{:.1f}, {:.2f}".format(*figures(way(val, val_truth)(test), truth)))
    scale, shift = fit_platt_scaling(val, val_truth)
    return halves, [*whole, f"{scale:.2f}, {shift:+.2f}"]


def main() -> None:
    """Print both tables, or write a prediction file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", metavar="RUN", type=Path, help="write the prediction file of this run")
    parser.add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args()
    if arguments.predict is not None:
        predict(arguments.predict, arguments.files[0])
        return
    halves, whole = zip(*map(compare, arguments.files), strict=True)
    for rows, more in ((halves, []), (whole, ["scale, shift"])):
        headings = ["run", *WAYS, *more]
        for row in (headings, ["---"] * len(headings), *rows):
            print(f"| {' | '.join(row)} |")
        print()


if __name__ == "__main__":
    main()

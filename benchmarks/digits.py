"""Errors on MNIST and MultiMNIST as Sabour, Frosst and Hinton (2017) count them, of trained runs.

    contextcaps train --data mnist:PATH --model capsnet --backbone paper --image-size 28 … --out runs/mnist
    python benchmarks/digits.py runs/mnist

An image with n digits is right if its n highest scores are those of its digits: one for MNIST, two for MultiMNIST.
"""

import argparse
import math
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from contextcaps.training.evaluate import evaluate


def wrong_images(scores: Tensor, targets: Tensor) -> Tensor:
    """[n], whether the highest scores [n, J] of an image are not those of its labels [n, J], as many as it has."""
    order = scores.argsort(dim=1, descending=True, stable=True)  # [n, J]
    ranked = targets.bool().gather(1, order)  # [n, J]
    places = torch.arange(targets.shape[1], device=targets.device)
    return (ranked != (places < targets.sum(dim=1, keepdim=True))).any(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data", help="another source than the run's, such as multimnist:PATH?split=test")
    parser.add_argument("--split", default="test")
    arguments = parser.parse_args()
    for run in arguments.runs:
        split = None if arguments.data else arguments.split
        with tempfile.TemporaryDirectory() as out:  # the run's own report stays as it is
            found = evaluate(run, arguments.data, split=split, out=out, resamples=1, progress=False).predictions
        share = float(wrong_images(found.scores, found.targets).double().mean())
        spread = 1.96 * math.sqrt(share * (1 - share) / len(found))
        print(f"{run}: {100 * share:.2f} % of {len(found):,} images wrong (± {100 * spread:.2f})")


if __name__ == "__main__":
    main()

"""Compare ways to choose thresholds on validation images, by CF1 and OF1 on test images, from prediction files.

    python benchmarks/thresholds.py --predict runs/coco coco.npz        # scores the run's two parts
    python benchmarks/thresholds.py coco.npz corel5k.npz

A prediction file has val_scores, val_targets, test_scores and test_targets, each [n, J]. Prints Markdown tables.
"""

import argparse
import math
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from contextcaps.evaluation.metrics import count_bands, count_decisions, tune_thresholds

FIGURES = ("CF1", "OF1", "CP", "CR", "OP", "OR")
SHARES = (0.5, 0.7, 0.8, 0.9)


def per_class(scores: Tensor, targets: Tensor) -> Tensor:
    """The threshold with the highest F1 of each class [J], as it was before; 0.5 for a class without a positive."""
    found = []
    for column, truth in zip(scores.T.double(), targets.T, strict=True):
        order = column.argsort(descending=True)
        values, hits = column[order], truth[order].cumsum(0)
        f1 = 2 * hits / (torch.arange(1, len(values) + 1) + truth.sum())
        f1[:-1][values[:-1] == values[1:]] = -1  # equal scores enter together
        best = int(f1.argmax())
        below = values[best + 1] if best + 1 < len(values) else 0.0
        found.append(float((values[best] + below) / 2) if truth.any() else max(0.5, float((values[0] + 1) / 2)))
    return torch.tensor(found, dtype=torch.float64)


def predict(run: str, file: Path) -> None:
    """Write the prediction file of a run."""
    import contextcaps

    arrays = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in ("val", "test"):
            found = contextcaps.evaluate(run, split=part, out=folder, resamples=2).predictions
            arrays |= {f"{part}_scores": found.scores.numpy(), f"{part}_targets": found.targets.numpy()}
    np.savez_compressed(file, **arrays)


def compare(file: Path) -> tuple[list[list[str]], list[list[str]]]:
    """Return the rows of both tables for one data set."""
    with np.load(file) as stored:
        val, val_truth, test, truth = (
            torch.from_numpy(stored[f"{part}_{what}"]) for part in ("val", "test") for what in ("scores", "targets")
        )
    tuned = tune_thresholds(val, val_truth)
    ways = {
        "0.5": 0.5,
        f"best single ({tuned.shared:.3f})": tuned.shared,
        "per class (before)": per_class(val, val_truth),
        f"new (k = {tuned.pseudo_positives:g})".replace("inf", "∞"): tuned.each,
    }
    decisions = []
    for name, limit in ways.items():
        figures = count_decisions(test, truth, limit).summary()
        lowest = float(torch.as_tensor(limit).min())
        decisions.append([file.stem, name, *(f"{100 * float(figures[each]):.1f}" for each in FIGURES), f"{lowest:.2g}"])
    bands = count_bands(val, val_truth)
    asked = []
    for share in SHARES:
        row = [file.stem, f"{100 * share:.0f}"]
        for threshold, figure in (
            (bands.threshold_of_precision(share), "OP"),
            (bands.threshold_of_recall(share), "OR"),
        ):
            found = math.nan if threshold is None else float(count_decisions(test, truth, threshold).summary()[figure])
            row += ["none", ""] if threshold is None else [f"{threshold:.3f}", f"{100 * found:.1f}"]
        asked.append(row)
    said = test >= tuned.each  # [n, J]
    expected = torch.tensor([bands.precision(score) or math.nan for score in test[said].tolist()])
    asked[0].append(f"{100 * float(expected.mean()):.1f} / {100 * float(truth[said].double().mean()):.1f}")
    return decisions, asked


def print_table(headings: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table."""
    for row in (headings, ["---"] * len(headings), *rows):
        print(f"| {' | '.join([*row, *[''] * (len(headings) - len(row))])} |")


def main() -> None:
    """Print both tables, or write a prediction file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", metavar="RUN", help="write the prediction file of this run")
    parser.add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args()
    if arguments.predict is not None:
        predict(arguments.predict, arguments.files[0])
        return
    found = [compare(file) for file in arguments.files]
    print_table(["data", "thresholds", *FIGURES, "lowest"], [row for rows, _ in found for row in rows])
    print()
    headings = ["data", "asked for", "threshold", "test OP", "threshold", "test OR", "tags: expected / found"]
    print_table(headings, [row for _, rows in found for row in rows])


if __name__ == "__main__":
    main()

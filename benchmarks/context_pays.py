"""Where context pays: models compared as labels are told, labels or images are missing, and images tell less.

    python benchmarks/context_pays.py --config benchmarks/context_pays.yaml --data SOURCE --test-data SOURCE \\
        --seeds 3 --out runs/pays
    python benchmarks/context_pays.py --out runs/pays --draw     # the figure and tables of what is finished

Each share of labels or images that training may use is an ablation of its own in OUT; stopped, the same command goes
on. Models that can be told labels are trained for it (`known=0.5`) and told shares of the test images' labels; those of
the whole training part are tested on degraded images. Writes OUT/pays.json, with every seed, and OUT/pays.png: the lead
of contextcaps over gap and over the best other head at each point.
"""

import argparse
import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import contextcaps
from contextcaps.evaluation.known.measuring import parse_shares
from contextcaps.training.config import TrainConfig
from contextcaps.training.evaluate import evaluate

MODELS = "contextcaps,gap,ml-decoder:loss=asl,ml-decoder-global=ml-decoder:field=default,field.global_branch=true,csra"
TOLD = (
    "contextcaps=contextcaps:known=0.5,gap=gap:field=default,known=0.5,"
    "ml-decoder-global=ml-decoder:field=default,field.global_branch=true,known=0.5,c-tran=c-tran:known=0.5"
)
FIRST = "contextcaps"
"""Its lead is drawn."""
NAIVE = ",naive=gap:hidden_labels=absent"
DEGRADED = ("small:32", "blur:0.02", "occlude:0.5", "surroundings:0.5", "uncovered:0.5")
TITLES = {
    "told": "labels told at test, share",
    "labels": "labels known in training, share",
    "images": "training images, share",
    "degraded": "degraded test images",
}
Points = dict[str, dict[str, dict[str, dict[str, float]]]]
"""Axis → point → model → seed → test mAP, from 0 to 1."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="a training's YAML file, the same for all models")
    parser.add_argument("--data")
    parser.add_argument("--test-data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int)
    parser.add_argument("--models", default=MODELS, help="contextcaps and gap among them")
    parser.add_argument("--told-models", default=TOLD)
    parser.add_argument("--told", type=parse_shares, default=(0.1, 0.25, 0.5, 0.75, 0.9))
    parser.add_argument("--labels", type=parse_shares, default=(0.05, 0.1, 0.3, 0.5))
    parser.add_argument("--images", type=parse_shares, default=(0.01, 0.05, 0.25))
    parser.add_argument("--axes", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draw", action="store_true", help="draw what OUT/pays.json has, and train nothing")
    arguments = parser.parse_args()
    path = arguments.out / "pays.json"
    points: Points = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for axis in [] if arguments.draw else arguments.axes:
        for point, found in measured(arguments, axis).items():
            points.setdefault(axis, {})[point] = found
            path.write_text(json.dumps(points, indent=1) + "\n", encoding="utf-8")
    draw(points, arguments.out / "pays.png")


def measured(arguments: argparse.Namespace, axis: str) -> dict[str, dict[str, dict[str, float]]]:
    """Train and test what an axis needs; return its points."""
    if axis == "told":
        found: dict[str, dict[str, dict[str, float]]] = {}
        for label, seed, run in runs(trained(arguments, "told", arguments.told_models)):
            known = evaluate(run, arguments.test_data, known=arguments.told, resamples=100, progress=False).known
            assert known is not None
            for each in known.shares:
                found.setdefault(f"{each.share:g}", {}).setdefault(label, {})[seed] = each.told.value
        return found
    whole = trained(arguments, "whole", arguments.models)
    if axis == "degraded":
        found = {}
        for kind in DEGRADED:
            for label, seed, run in runs(whole):
                result = evaluate(run, arguments.test_data, degrade=kind, resamples=100, progress=False)
                found.setdefault(kind, {}).setdefault(label, {})[seed] = result.evaluation.metrics["mAP"].model.value
        return found
    scores = {"1": mAP_by_seed(whole)}
    for share in getattr(arguments, axis):
        models = arguments.models + (NAIVE if axis == "labels" else "")
        folder = trained(arguments, f"{axis}-{share:g}", models, **{f"keep_{axis}": share})
        scores[f"{share:g}"] = mAP_by_seed(folder)
    return scores


def trained(arguments: argparse.Namespace, name: str, models: str, **changes: Any) -> Path:
    """Train models with all seeds, or go on where they were; return the ablation's folder."""
    config = TrainConfig() if arguments.config is None else TrainConfig.from_yaml(arguments.config)
    folder = arguments.out / name
    config = dataclasses.replace(config, data=arguments.data, out=str(folder), **changes)
    options = {} if arguments.at_once is None else {"at_once": arguments.at_once}
    contextcaps.ablate(
        models=models, train=config, seeds=arguments.seeds, test_data=arguments.test_data, resamples=100, **options
    ).require_success()
    return folder


def runs(folder: Path) -> list[tuple[str, str, Path]]:
    """Return label, seed and folder of each run of an ablation."""
    found = sorted((folder / "runs").glob("*/seed-*/run.json"))
    return [(path.parent.parent.name, path.parent.name.removeprefix("seed-"), path.parent) for path in found]


def mAP_by_seed(folder: Path) -> dict[str, dict[str, float]]:
    document = json.loads((folder / "ablation.json").read_text(encoding="utf-8"))
    return {model["label"]: model["mAP_by_seed"] for model in document["models"]}


def draw(points: Points, path: Path) -> None:
    """Print each axis as a table, and draw the leads."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(TITLES), sharey=True)
    for place, (axis, title) in zip(axes, TITLES.items(), strict=True):
        place.set_title(title, fontsize=10)
        place.axhline(0, color="#666666", linewidth=1)
        by_point = points.get(axis, {})
        order = list(by_point) if axis == "degraded" else sorted(by_point, key=float)
        over_gap, over_best = [], []
        print(f"\n{title}")
        for point in order:
            models = by_point[point]
            means = {label: 100 * statistics.mean(seeds.values()) for label, seeds in models.items()}
            over_gap.append(means[FIRST] - means["gap"])
            over_best.append(means[FIRST] - max(value for label, value in means.items() if label != FIRST))
            print(f"{point:14}", ", ".join(f"{label} {value:.1f}" for label, value in means.items()))
        for leads, label, colour in ((over_gap, "over gap", "#D55E00"), (over_best, "over the best other", "#0072B2")):
            place.plot(range(len(order)), leads, "o-", color=colour, label=label)
        place.set_xticks(range(len(order)), order, rotation=30 if axis == "degraded" else 0, fontsize=8)
        place.grid(color="#e2e2e2", linewidth=0.6)
        place.set_axisbelow(True)
    axes[0].set_ylabel("contextcaps − other (points of test mAP)")
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle("Where context pays", fontweight="bold")
    figure.savefig(path, dpi=110, facecolor="white", metadata={"Software": "contextcaps"})


if __name__ == "__main__":
    main()

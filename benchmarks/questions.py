"""How many answers does it take: labels asked by expected drop of entropy, by uncertainty, and at random.

    python benchmarks/questions.py 'shards:val.tar' --model coco80 --images 1500
    python benchmarks/questions.py 'ade20k:PATH?unlabelled=keep' --split val --model RUN

Half of each image's classes, drawn at random, may be asked; the other half never is, and is what is scored: the same
pairs of image and class for all ways of asking. Questions are asked one after the other, each in the light of the true
answers so far. mAP of the labels that are not asked after k answers, with 95 % intervals (bootstrap over images), and
how many questions each way needs for what random ones reach after the last.

- random: the mean of three orders.
- uncertain: the open label whose score has the highest entropy.
- settles: `contextcaps audit --ask`, the highest expected drop of the entropy of all open labels.
"""

import argparse
import json

import numpy as np
import torch
from features import BATCH, load_features, option_parser
from torch import Tensor

from contextcaps.evaluation.known.measuring import counted_average_precision
from contextcaps.evaluation.metrics import basic_interval
from contextcaps.evaluation.metrics.bootstrap import bootstrap_counted_precision
from contextcaps.evaluation.scoring import class_order
from contextcaps.models.expected_drops import binary_entropy, expected_drops_told
from contextcaps.models.told import Told

WAYS = ("random", "uncertain", "settles")
ORDERS = 3


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--most", type=int, default=12, help="questions for each image")
    arguments = parser.parse_args()
    tagger, source, features, targets = load_features(arguments)
    targets = targets[:, class_order(tagger.network, source)]  # [n, J]
    may_ask = torch.from_numpy(np.random.default_rng(0).random(targets.shape)).argsort(1).argsort(1)
    may_ask = may_ask < targets.shape[1] // 2  # [n, J]
    curves: dict[str, list[list[Tensor]]] = {way: [[] for _ in range(arguments.most + 1)] for way in WAYS}
    for rows in torch.arange(len(targets)).split(BATCH):
        with torch.inference_mode():
            told = Told(tagger.network, features[rows].float())
            for way in WAYS:
                for order in range(ORDERS if way == "random" else 1):
                    each = asked(told, targets[rows], may_ask[rows], way, arguments.most, 1000 * order + int(rows[0]))
                    for place, scores in enumerate(each):
                        curves[way][place].append(scores)
    report(curves, targets, ~may_ask, arguments)


def asked(told: Told, targets: Tensor, may_ask: Tensor, way: str, most: int, seed: int) -> list[Tensor]:
    """Return the scores [B, J] before the first question and after each answer."""
    random = torch.Generator().manual_seed(seed)
    order = torch.rand(targets.shape, generator=random)  # [B, J]
    known = torch.full(targets.shape, torch.nan)  # [B, J]
    found = []
    for _ in range(most + 1):
        if way == "settles":
            value, scores = expected_drops_told(told, known)  # [B, J]
        else:
            scores = told.scores(known.unsqueeze(1))[:, 0]  # [B, J]
            value = order if way == "random" else binary_entropy(scores)  # [B, J]
        found.append(scores)
        value = value.nan_to_num(-torch.inf).masked_fill(~may_ask | ~known.isnan(), -torch.inf)
        place = value.argmax(dim=1, keepdim=True)  # [B, 1]
        known.scatter_(1, place, targets.gather(1, place).float())
    return found


def report(
    curves: dict[str, list[list[Tensor]]], targets: Tensor, counted: Tensor, arguments: argparse.Namespace
) -> None:
    values: dict[str, np.ndarray] = {}
    drawn: dict[str, np.ndarray] = {}
    for way, steps in curves.items():
        repeats = ORDERS if way == "random" else 1
        points, resampled = [], []
        for parts in steps:
            scores = [torch.cat(parts[order::repeats]) for order in range(repeats)]  # [n, J] each
            points.append(np.mean([float(counted_average_precision(s, targets, counted).nanmean()) for s in scores]))
            own = {"resamples": arguments.resamples, "seed": 0}
            resampled.append(
                np.mean([bootstrap_counted_precision(s, targets, counted, **own).numpy() for s in scores], axis=0)
            )
        values[way], drawn[way] = np.array(points), np.stack(resampled)  # [k + 1], [k + 1, R]
    rows = []
    for place in range(arguments.most + 1):
        row: dict[str, object] = {"answers": place}
        for way in WAYS:
            low, high = basic_interval(torch.from_numpy(drawn[way][place]), values[way][place])
            row[way] = [round(100 * each, 2) for each in (values[way][place], low, high)]
        for way in ("random", "uncertain"):
            lead = values["settles"][place] - values[way][place]
            low, high = basic_interval(torch.from_numpy(drawn["settles"][place] - drawn[way][place]), lead)
            row[f"settles − {way}"] = [round(100 * each, 2) for each in (lead, low, high)]
        rows.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
    for peer in ("random", "uncertain"):
        share = [
            questions_for(values["settles"], goal) / place for place, goal in enumerate(values[peer]) if place >= 3
        ]
        print(
            f"questions that settles needs for the mAP of {peer}, as a share of its own: {np.round(share, 2).tolist()}"
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False))


def questions_for(curve: np.ndarray, goal: float) -> float:
    """Return after how many answers a curve reaches a goal, between two of them in proportion; inf if it does not."""
    reached = np.flatnonzero(curve >= goal)
    if not len(reached):
        return float("inf")
    place = int(reached[0])
    if place == 0:
        return 0.0
    return place - 1 + float((goal - curve[place - 1]) / (curve[place] - curve[place - 1]))


if __name__ == "__main__":
    main()

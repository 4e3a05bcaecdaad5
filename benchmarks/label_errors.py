"""Plant errors in labels, and measure how early rankings of the labels find them.

    python benchmarks/label_errors.py 'shards:val.tar' --model coco80
    python benchmarks/label_errors.py voc:PATH --split test --train-folds 2

`dropped`: a share of the present labels, drawn at random, becomes absent. `flipped`: also, as many absent labels
become present. All rankings have the same predictions: of a model that has not learned from the images, or, with
`--train-folds`, of heads on the model's frozen backbone, each trained on the planted labels of the other folds.

- loss: −log of the label's probability, nothing told. For a label with two values it is also the order of cleanlab's
  self-confidence and normalized margin (Northcutt et al. 2021, Thyagarajan et al. 2022).
- cleanlab: labels that `find_multilabel_issues_per_class` flags come first, in the order of self-confidence; left out
  where cleanlab (2.9, Apache-2.0) is not installed.
- loss, told: the loss with all other labels told.
- Platt, told: the same with one scale and one shift fitted to the labels.
- audit, untold and audit, told: `fit_label_noise` of the model's logits, without and with the others told.
- audit: `fit_label_noise` of a mixture of both, as `contextcaps audit` ranks.

Average precision of finding the planted errors among all labels, with 95 % intervals (bootstrap over images). Natural
errors count as right labels.
"""

import argparse
import importlib.util
import json
from collections.abc import Iterator

import numpy as np
import torch
from features import BATCH, load_features, option_parser
from torch import Tensor

import contextcaps
from contextcaps.data import Source
from contextcaps.evaluation.known.revealing import known_labels, loss_weights, reveal
from contextcaps.evaluation.metrics import basic_interval, fit_label_noise, fit_platt_scaling
from contextcaps.evaluation.scoring import class_order
from contextcaps.experiments.folds import fold_indices
from contextcaps.models.leave_one_out import leave_one_out_told
from contextcaps.models.told import Told
from contextcaps.tagging import Tagger
from contextcaps.training.labels import learn_labels

CELLS = (("dropped", 0.02), ("dropped", 0.05), ("flipped", 0.02), ("flipped", 0.05))
OURS = "audit"
TYPES = 8
"""Capsule types of the folds' heads."""


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="plantings of each kind and share")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--train-folds", type=int, help="train heads on so many folds")
    parser.add_argument("--epochs", type=int, default=5, help="of the folds' heads")
    arguments = parser.parse_args()
    tagger, source, features, targets = load_features(arguments)
    if not arguments.train_folds:
        tagger.config.require_takes_known()
    found = []
    seen = None if arguments.train_folds else ready(tagger.network, features, torch.arange(len(features)))
    for kind, share in CELLS:
        plantings = []
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            labels, is_error = plant(targets, kind, share, seed)
            if seen is not None:
                labels = labels[:, class_order(tagger.network, source)]
                is_error = is_error[:, class_order(tagger.network, source)]
                parts = seen
            else:
                networks = trained_folds(tagger, source, features, labels, arguments)
                parts = [part for network, fold in networks for part in ready(network, features, fold)]
            plantings.append((rankings(parts, labels), labels, is_error))
        row = {"kind": kind, "share": share, "errors": int(plantings[0][2].sum())}
        row |= measured(plantings, arguments.resamples)
        found.append(row)
        print(json.dumps(row), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps(
                {
                    "settings": {
                        name: str(value) for name, value in vars(arguments).items() if name not in ("json", "features")
                    },
                    "rows": found,
                },
                indent=1,
            )
        )


def plant(targets: Tensor, kind: str, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return labels with errors, and where these are, [n, J]."""
    random = np.random.default_rng(seed)
    flat = targets.numpy().copy().reshape(-1)
    present, absent = np.flatnonzero(flat == 1), np.flatnonzero(flat == 0)
    count = round(share * len(present))
    errors = random.choice(present, count, replace=False)
    if kind == "flipped":
        errors = np.concatenate([errors, random.choice(absent, count, replace=False)])
    flat[errors] = 1 - flat[errors]
    is_error = np.zeros(flat.shape, dtype=bool)
    is_error[errors] = True
    return torch.from_numpy(flat.reshape(targets.shape)), torch.from_numpy(is_error.reshape(targets.shape))


def trained_folds(
    tagger: Tagger, source: Source, features: Tensor, labels: Tensor, arguments: argparse.Namespace
) -> Iterator[tuple[contextcaps.CapsuleNetwork, Tensor]]:
    """Train a head on all folds but one, for each; yield the network and the images [m] that it has not seen."""
    for fold in fold_indices(source, arguments.train_folds, seed=0):
        others = np.setdiff1d(np.arange(len(labels)), fold)
        torch.manual_seed(0)
        config = tagger.network.config
        network = contextcaps.create_model(
            "contextcaps", labels.shape[1], config.image_size, config.backbone, capsules={"types": TYPES}
        )
        learn_labels(network, labels[others])
        train_head(network, features, labels, others, arguments.epochs)
        yield network.eval(), torch.from_numpy(fold)


def train_head(
    network: contextcaps.CapsuleNetwork, features: Tensor, labels: Tensor, images: np.ndarray, epochs: int
) -> None:
    """Train a head and its field on features, with cross-entropy; half of the batches' images are told labels."""
    weights = [*network.head.parameters(), *network.field.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-3)
    steps = epochs * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    network.train()
    for _ in range(epochs):
        for rows in torch.from_numpy(np.random.default_rng(steps).permutation(images)).split(BATCH):
            targets = labels[rows]  # [B, J]
            given = reveal(targets, 0.5)  # [B, J]
            logits = network.from_features(features[rows].float(), known=known_labels(targets, given)).logits
            left = loss_weights(given, torch.zeros_like(given))  # [B, J]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets.float(), left)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def ready(network: contextcaps.CapsuleNetwork, features: Tensor, images: Tensor) -> list[tuple[Tensor, Told]]:
    """Return batches of images [m], ready to be told labels."""
    with torch.inference_mode():
        return [(rows, Told(network, features[rows].float())) for rows in images.split(BATCH)]


def rankings(parts: list[tuple[Tensor, Told]], labels: Tensor) -> dict[str, np.ndarray]:
    """Return name → how suspicious each label is, [n, J]."""
    plain, told = torch.zeros(labels.shape), torch.zeros(labels.shape)
    with torch.inference_mode():
        for rows, images in parts:
            plain[rows] = images.scores(torch.full((len(rows), 1, labels.shape[1]), torch.nan))[:, 0]
            told[rows] = leave_one_out_told(images, labels[rows].float())
    sign = np.where(labels.numpy() == 1, -1, 1)
    logits = {name: torch.logit(each.double(), eps=1e-7) for name, each in (("plain", plain), ("told", told))}
    found = {"loss": sign * logits["plain"].numpy(), "loss, told": sign * logits["told"].numpy()}
    scale, shift = fit_platt_scaling(logits["told"], labels)
    found["Platt, told"] = sign * (scale * logits["told"] + shift).numpy()
    for name, kinds in (("audit, untold", ("plain",)), ("audit, told", ("told",)), (OURS, ("plain", "told"))):
        own = [logits[kind] for kind in kinds]
        noise = fit_label_noise(own[0], labels, *own[1:])
        found[name] = -torch.logit(noise.right(noise.calibrated(*own), labels == 1), eps=1e-12).numpy()
    if importlib.util.find_spec("cleanlab") is not None:
        from cleanlab.multilabel_classification.filter import find_multilabel_issues_per_class

        present = [np.flatnonzero(row).tolist() for row in labels.numpy() == 1]
        is_issue = find_multilabel_issues_per_class(present, plain.double().numpy(), n_jobs=1)
        found["cleanlab"] = found["loss"] + 1e3 * np.asarray(is_issue)
    return found


def measured(plantings: list[tuple[dict[str, np.ndarray], Tensor, Tensor]], resamples: int) -> dict[str, object]:
    """Return each ranking's average precision with its interval, means over plantings, and the differences to ours."""
    images = plantings[0][1].shape[0]
    weights = np.random.default_rng(0).multinomial(images, np.full(images, 1 / images), resamples)  # [R, n]
    weights = np.concatenate([np.ones((1, images), dtype=weights.dtype), weights])
    of: dict[str, np.ndarray] = {}
    for name in plantings[0][0]:
        each = [average_precisions(found[name], is_error.numpy(), weights) for found, _, is_error in plantings]
        of[name] = np.mean(each, axis=0)  # [1 + R]
    result: dict[str, object] = {}
    for name, values in of.items():
        low, high = basic_interval(torch.from_numpy(values[1:]), float(values[0]))
        lead = of[OURS] - values
        lead_low, lead_high = basic_interval(torch.from_numpy(lead[1:]), float(lead[0]))
        numbers = (values[0], low, high, lead[0], lead_low, lead_high)
        result[name] = [round(100 * float(number), 1) for number in numbers]
    return result


def average_precisions(suspicion: np.ndarray, is_error: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the average precision under each row of image weights [R, n]; equal suspicions count in one step."""
    order = np.argsort(-suspicion, axis=None, kind="stable")
    rows, hits = order // suspicion.shape[1], is_error.reshape(-1)[order]
    ends = np.flatnonzero(np.diff(suspicion.reshape(-1)[order], append=np.nan))
    found = []
    for each in weights:
        counts = np.cumsum(each[rows])[ends]
        right = np.cumsum(each[rows] * hits)[ends]
        gained = np.diff(right, prepend=0)
        found.append(float((gained * right / np.maximum(counts, 1)).sum() / max(1, right[-1])))
    return np.array(found)


if __name__ == "__main__":
    main()

"""Which reading of the paper learns what: short trainings of variants of one network, side by side.

    python benchmarks/readings.py --train 'PATH/train-*.tar' --test PATH/val.tar --classes PATH/classes.json

Each variant is a preset and overrides; every run has the same data, schedule and budget. A tenth of the training images
is kept apart as validation part; the test part is scored once, after the last epoch. Writes one JSON line per run to
--output and prints the table of macro mAP. The images are held on the device in memory, as bytes.
"""

import argparse
import glob
import io
import json
import tarfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from contextcaps.capsules import unchecked
from contextcaps.models import CapsuleNetwork, create_model
from contextcaps.training.losses import LOSSES

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "capsnet": ("capsnet", {}),
    "capsnet, plain start": ("capsnet", {"capsules.start_length": None, "capsules.decision_bias": False}),
    "capsnet, BCE on lengths": ("capsnet", {"loss": "bce"}),
    "capsnet, one iteration": ("capsnet", {"routing.iterations": 1}),
    "capsnet, softmax over capsules": ("capsnet", {"routing.normalize": "capsules"}),
    "RW as couplings": ("capsnet-rw", {}),
    "RW as gate": ("capsnet-rw", {"initial_routing.mode": "gate"}),
    "RW as logits over capsules": ("capsnet-rw", {"initial_routing.mode": "logits", "routing.normalize": "capsules"}),
    "RW literal": ("capsnet-rw-literal", {}),
    "CRF": ("capsnet", {"crf": {}}),
    "RW + CRF": ("capsnet-rw-crf", {}),
    "RW + CRF literal": ("capsnet-rw-crf-literal", {}),
    "CORR instead of routing": ("capsnet", {"routing": None, "correlation": {}}),
    "CORR joined to routing": ("capsnet", {"correlation": {}}),
    "RW + CRF + CORR joined": ("capsnet-rw-crf", {"correlation": {}}),
    "contextcaps": ("capsnet-rw-crf-corr", {}),
    "capsnet, plain start and bias": ("capsnet", {"capsules.start_length": None}),
    "capsnet, shared votes": ("capsnet", {"capsules.share_votes": True}),
    "capsnet, 4 types": ("capsnet", {"capsules.types": 4}),
    "CORR, shared votes": ("capsnet", {"routing": None, "correlation": {}, "capsules.share_votes": True}),
    "RW + CRF + CORR literal": ("capsnet-rw-crf-corr-literal", {}),
}
"""Name → preset and overrides (`loss` is the loss's name, margin by default)."""


def read_image(sample: tuple[bytes, int]) -> np.ndarray:
    """A JPEG as bytes [H, W, 3] of the side asked for."""
    data, side = sample
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(image if image.size == (side, side) else image.resize((side, side), Image.Resampling.LANCZOS))


def read_shards(pattern: str, classes: list[str], side: int) -> tuple[Tensor, Tensor]:
    """Images [n, 3, side, side] as bytes and targets [n, J], from tar files of adjacent .jpg and .json members."""
    pictures: list[tuple[bytes, int]] = []
    targets: list[list[int]] = []
    for path in sorted(glob.glob(pattern)):
        with tarfile.open(path) as tar:
            for member in tar:
                stored = tar.extractfile(member)
                assert stored is not None
                if member.name.endswith(".jpg"):
                    pictures.append((stored.read(), side))
                else:
                    targets.append([classes.index(name) for name in json.load(stored)["labels"]])
    if not pictures:
        raise SystemExit(f"readings: no images in {pattern}")
    with ProcessPoolExecutor() as pool:
        images = np.stack(list(pool.map(read_image, pictures, chunksize=256)))
    present = torch.zeros(len(targets), len(classes))
    for row, names in enumerate(targets):
        present[row, names] = 1
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), present


def macro_average_precision(scores: Tensor, targets: Tensor) -> float:
    """Mean over classes with a positive of the non-interpolated average precision, from 0 to 1."""
    order = scores.argsort(dim=0, descending=True)  # [n, J]
    hits = targets.gather(0, order)  # [n, J]
    ranks = torch.arange(1, len(hits) + 1, device=hits.device).unsqueeze(1)  # [n, 1]
    precision = hits.cumsum(dim=0) / ranks  # [n, J]
    positives = hits.sum(dim=0)  # [J]
    per_class = (precision * hits).sum(dim=0) / positives.clamp_min(1)  # [J]
    return float(per_class[positives > 0].mean())


@torch.inference_mode()
def predict(network: CapsuleNetwork, images: Tensor, batch: int, half: bool) -> Tensor:
    """Scores [n, J] of all images."""
    network.eval()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=half):
        return torch.cat([network(part).scores.float() for part in images.split(batch)])


def train(name: str, seed: int, data: dict[str, tuple[Tensor, Tensor]], options: argparse.Namespace) -> dict[str, Any]:
    """One run: validation mAP of each epoch, and the test mAP at the end."""
    preset, overrides = VARIANTS[name]
    overrides = (
        dict(overrides) if preset.endswith("-literal") else {"capsules.start_length": options.start, **overrides}
    )
    loss_function = LOSSES[overrides.pop("loss", "margin")]
    torch.manual_seed(seed)
    images, targets = data["train"]
    network = create_model(preset, targets.shape[1], options.side, options.backbone, **overrides).to(images.device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=options.rate, weight_decay=0.01)
    steps = options.epochs * (len(images) // options.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, total_steps=steps, pct_start=0.15)
    half = images.device.type == "cuda"
    start, curve, losses = time.perf_counter(), [], []
    for _ in range(options.epochs):
        network.train()
        order = torch.randperm(len(images), device=images.device)
        total = torch.zeros((), device=images.device)
        for chosen in order.split(options.batch)[: len(images) // options.batch]:
            batch = images[chosen]
            flipped = torch.rand(len(batch), 1, 1, 1, device=batch.device) < 0.5
            batch = torch.where(flipped, batch.flip(-1), batch)
            with unchecked():
                with torch.autocast(batch.device.type, torch.bfloat16, enabled=half):
                    output = network(batch)
                loss = loss_function(output.scores, targets[chosen])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.detach()
        losses.append(float(total) / (len(images) // options.batch))
        scores = predict(network, data["validation"][0], options.batch, half)
        curve.append(macro_average_precision(scores, data["validation"][1]))
    seconds = time.perf_counter() - start
    test = macro_average_precision(predict(network, data["test"][0], options.batch, half), data["test"][1])
    weights = sum(parameter.numel() for parameter in network.parameters())
    rounded = [round(value, 5) for value in curve]
    return {"variant": name, "seed": seed, "test_mAP": test, "validation_mAP": rounded, "loss": losses} | {
        "seconds": seconds,
        "weights": weights,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--classes", required=True)
    parser.add_argument("--variants", default=";".join(VARIANTS), help="names separated by ';'")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--start", type=float, default=0.1, help="start_length where a variant has none of its own")
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--backbone", default="auto")
    parser.add_argument("--limit", type=int, help="use only so many training images")
    parser.add_argument("--output", type=Path, default=Path("readings.jsonl"))
    options = parser.parse_args()

    classes = json.loads(Path(options.classes).read_text())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images, targets = (part[: options.limit].to(device) for part in read_shards(options.train, classes, options.side))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(device)
    kept = len(images) // 10
    data = {
        "train": (images[order[kept:]], targets[order[kept:]]),
        "validation": (images[order[:kept]], targets[order[:kept]]),
        "test": tuple(part.to(device) for part in read_shards(options.test, classes, options.side)),
    }
    print(
        f"{len(data['train'][0])} train, {kept} validation, {len(data['test'][0])} test images on {device}", flush=True
    )
    with options.output.open("a") as output:
        for name in options.variants.split(";"):
            for seed in options.seeds:
                result = train(name, seed, data, options)  # type: ignore[arg-type]
                output.write(json.dumps(result) + "\n")
                output.flush()
                curve = " ".join(f"{100 * value:.1f}" for value in result["validation_mAP"])
                shown = f"test mAP {100 * result['test_mAP']:.2f} %, validation, in percent, {curve}"
                print(f"{name:32} seed {seed} {shown}", flush=True)


if __name__ == "__main__":
    main()

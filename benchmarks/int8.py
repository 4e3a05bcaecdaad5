"""What 8 bits cost and gain: an exported model against itself with convolutions in int8, on the same photographs.

Neither set of photographs may be one that the model has learned from; a test set is measured once.

python benchmarks/int8.py --model coco80 --calibrate 'shards:HELD_OUT/*.tar' --data 'shards:TEST.tar'
"""

import argparse
import logging
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch

from contextcaps.cores import usable_cores
from contextcaps.data import open_source
from contextcaps.data.decoding import decode_ahead
from contextcaps.data.source import Source
from contextcaps.evaluation.metrics import average_precision
from contextcaps.experiments.bench.int8 import FIRST, LAST, inputs_of, quantize
from contextcaps.models.config import ModelConfig
from contextcaps.models.loading import load_model
from contextcaps.tagging.export import export

_BATCH = 4


def session(path: Path, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def read(source: Source, size: tuple[int, int], count: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return images [n, 3, H, W] spread over a source, and their labels [n, J]."""
    places = np.arange(len(source)) if count is None else np.linspace(0, len(source) - 1, count).astype(int)
    pieces = list(decode_ahead(source, np.array_split(places, max(1, len(places) // 64)), size))
    images = np.concatenate([piece.images for piece in pieces])
    labels = np.zeros((len(images), len(source.classes)), np.uint8)
    for row, place in enumerate(np.concatenate([piece.indices for piece in pieces])):
        labels[row, list(source.labels_of(int(place)))] = 1
    return images, labels


def precision(path: Path, images: np.ndarray, labels: np.ndarray, config: ModelConfig) -> float:
    """Return the macro mAP in percent."""
    made = session(path, usable_cores())
    pieces = [images[start : start + _BATCH] for start in range(0, len(images), _BATCH)]
    scores = np.concatenate([made.run(["scores"], inputs_of(piece, config))[0] for piece in pieces])
    return 100 * float(average_precision(torch.from_numpy(scores), torch.from_numpy(labels), average="macro"))


def times(paths: dict[str, Path], images: np.ndarray, config: ModelConfig) -> dict[str, tuple[float, float]]:
    """Return for each file, in turn, the least milliseconds of an image on all cores, and of one core's time."""
    sessions = {(name, n): session(path, n) for name, path in paths.items() for n in (usable_cores(), 1)}
    given, least = inputs_of(images[:_BATCH], config), dict.fromkeys(sessions, float("inf"))
    for _ in range(40):
        for key, made in sessions.items():
            clock = time.perf_counter if key[1] > 1 else time.process_time
            began = clock()
            made.run(["scores"], given)
            least[key] = min(least[key], 1e3 * (clock() - began) / _BATCH)
    return {name: (least[name, usable_cores()], least[name, 1]) for name in paths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="coco80")
    parser.add_argument("--calibrate", required=True, metavar="SOURCE")
    parser.add_argument("--data", required=True, metavar="SOURCE")
    parser.add_argument("--images", type=int, help="so many images of the data only, spread over them")
    parser.add_argument("--first", type=int, default=FIRST, help="convolutions that stay in fp32 at the beginning")
    parser.add_argument("--last", type=int, default=LAST, help="and at the end")
    words = parser.parse_args()
    logging.disable(logging.WARNING)
    network, _ = load_model(words.model)
    config = network.config
    calibration, _ = read(open_source(words.calibrate), config.image_size, 64)
    images, labels = read(open_source(words.data), config.image_size, words.images)
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.onnx" for name in ("fp32", "int8")}
        export(words.model, out=paths["fp32"])
        quantize(paths["fp32"], paths["int8"], calibration, config, words.first, words.last)
        took = times(paths, images, config)
        cores = usable_cores()
        print(
            f"{words.model}, {len(images)} images; times of an image in batches of {_BATCH}, the least of 40, in turn"
        )
        print(f"| | MB | mAP | {cores} cores, ms | one thread, processor ms |\n|---|---|---|---|---|")
        for name, path in paths.items():
            size, found = path.stat().st_size / 1e6, precision(path, images, labels, config)
            print(f"| {name} | {size:.1f} | {found:.2f} | {took[name][0]:.1f} | {took[name][1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()

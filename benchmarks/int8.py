"""What 8 bits cost and gain: an exported model against itself with convolutions in int8, on the same photographs.

Static ranges from the photographs of --calibrate, a scale for each channel of the weights, QDQ. Neither set of
photographs may be one that the model has learned from; a test set is measured once.

python benchmarks/int8.py --model coco80 --calibrate 'shards:HELD_OUT/*.tar' --data 'shards:TEST.tar'
"""

import argparse
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

from contextcaps.cores import usable_cores
from contextcaps.data import open_source
from contextcaps.data.decoding import decode_ahead
from contextcaps.data.source import Source
from contextcaps.evaluation.metrics import average_precision
from contextcaps.models.loading import load_model
from contextcaps.models.onnx_export import model_of
from contextcaps.models.onnx_file import sealed

_BATCH = 8


def inputs_of(images: np.ndarray, classes: int, takes_known: bool) -> dict[str, np.ndarray]:
    nothing = {"known": np.full((len(images), classes), np.nan, np.float32)} if takes_known else {}
    return {"images": images, **nothing}


def session(path: Path, threads: int, basic_into: Path | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    if basic_into is not None:  # constants folded, operators fused: what is to be quantized
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(basic_into)
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


def quantize(
    path: Path, into: Path, images: np.ndarray, classes: int, takes_known: bool, kept: tuple[int, int]
) -> None:
    """Write a model with convolutions in int8, but for the `kept` first and last ones."""
    convolutions = [node.name for node in onnx.load(path).graph.node if node.op_type == "Conv"]
    first, last = kept

    class Images(CalibrationDataReader):
        def __init__(self) -> None:
            starts = range(0, len(images), _BATCH)
            self._left = iter([inputs_of(images[start : start + _BATCH], classes, takes_known) for start in starts])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._left, None)

    quantize_static(
        path,
        into,
        Images(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
        op_types_to_quantize=["Conv"],
        nodes_to_exclude=convolutions[:first] + convolutions[len(convolutions) - last :],
    )


def measured(path: Path, images: np.ndarray, labels: np.ndarray, takes_known: bool) -> tuple[float, float]:
    """Return the macro mAP in percent, and the milliseconds of an image on all cores."""
    made, scores, best = session(path, usable_cores()), [], float("inf")
    for start in range(0, len(images), _BATCH):
        given: dict[str, Any] = inputs_of(images[start : start + _BATCH], labels.shape[1], takes_known)
        began = time.perf_counter()
        scores.append(made.run(["scores"], given)[0])
        best = min(best, (time.perf_counter() - began) / len(given["images"]))
    found = average_precision(torch.from_numpy(np.concatenate(scores)), torch.from_numpy(labels), average="macro")
    return 100 * float(found), 1e3 * best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="coco80")
    parser.add_argument("--calibrate", required=True, metavar="SOURCE")
    parser.add_argument("--data", required=True, metavar="SOURCE")
    parser.add_argument("--images", type=int, help="so many images of the data only, spread over them")
    parser.add_argument("--first", type=int, default=6, help="convolutions that stay in fp32 at the beginning")
    parser.add_argument("--last", type=int, default=8, help="and at the end")
    words = parser.parse_args()
    logging.disable(logging.WARNING)
    network, trained = load_model(words.model)
    config = network.config
    calibration, _ = read(open_source(words.calibrate), config.image_size, 64)
    images, labels = read(open_source(words.data), config.image_size, words.images)
    with tempfile.TemporaryDirectory() as folder:
        whole, basic, small = (Path(folder) / f"{name}.onnx" for name in ("whole", "basic", "int8"))
        whole.write_bytes(sealed(model_of(network, trained, explained=False).SerializeToString()))
        session(whole, 1, basic)
        quantize(basic, small, calibration, config.num_classes, config.takes_known, (words.first, words.last))
        onnx.checker.check_model(str(small))
        print(
            f"{words.model}, {len(images)} images, {usable_cores()} cores; ms of an image in batches of {_BATCH}, least"
        )
        print("| | MB | mAP | ms |\n|---|---|---|---|")
        for name, path in (("fp32", whole), ("int8", small)):
            precision, milliseconds = measured(path, images, labels, config.takes_known)
            print(f"| {name} | {path.stat().st_size / 1e6:.1f} | {precision:.2f} | {milliseconds:.1f} |")


if __name__ == "__main__":
    main()

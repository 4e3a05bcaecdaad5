"""An exported model with convolutions in 8 bits, to be measured beside itself: it is not offered.

Static ranges (least and most of some photographs), a scale for each channel of the weights, QDQ. What it costs and
gains: docs/results/speed.md#8-bits.
"""

import tempfile
from pathlib import Path

import numpy as np

from contextcaps.extras import import_extra
from contextcaps.models.config import ModelConfig
from contextcaps.models.onnx_file import sealed

__all__ = ["FIRST", "LAST", "inputs_of", "quantize"]

FIRST, LAST = 6, 8
"""Convolutions that stay in fp32, at the beginning and at the end."""
_BATCH = 8


def inputs_of(images: np.ndarray, config: ModelConfig) -> dict[str, np.ndarray]:
    """Return what a graph takes for images [B, 3, H, W] of which nothing is known."""
    nothing = {"known": np.full((len(images), config.num_classes), np.nan, np.float32)} if config.takes_known else {}
    return {"images": images, **nothing}


def quantize(
    path: Path, into: Path, images: np.ndarray, config: ModelConfig, first: int = FIRST, last: int = LAST
) -> None:
    """Write an exported model with all convolutions in int8 but for the `first` and `last` ones.

    Args:
        path: as `contextcaps export` writes it.
        into: the new file.
        images: [n, 3, H, W], uint8, from which the ranges of features are taken.
        config: of the model.
        first, last: see above.

    Raises:
        ImportError: the extra `onnx` is missing.
    """
    onnx = import_extra("onnx", "onnx", "quantizing")
    import onnxruntime as ort
    from onnxruntime import quantization

    class Images(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            starts = range(0, len(images), _BATCH)
            self._left = iter([inputs_of(images[start : start + _BATCH], config) for start in starts])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._left, None)

    with tempfile.TemporaryDirectory(prefix="contextcaps-int8-") as folder:
        basic = Path(folder) / "basic.onnx"
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC  # constants folded
        options.optimized_model_filepath = str(basic)
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        convolutions = [node.name for node in onnx.load(basic).graph.node if node.op_type == "Conv"]
        quantization.quantize_static(
            basic,
            into,
            Images(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            calibrate_method=quantization.CalibrationMethod.MinMax,
            op_types_to_quantize=["Conv"],
            nodes_to_exclude=convolutions[:first] + convolutions[len(convolutions) - last :],
        )
    into.write_bytes(sealed(into.read_bytes()))

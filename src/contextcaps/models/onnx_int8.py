"""Convolutions of an exported network in 8 bits: static ranges, a scale for each channel of the weights."""

import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from contextcaps.extras import import_extra
from contextcaps.models.config import ModelConfig

__all__ = ["quantize"]

_AT_ONCE = 8


def quantize(path: Path, images: np.ndarray, config: ModelConfig) -> None:
    """Replace an ONNX file by one whose convolutions compute in 8 bits; its metadata stay.

    Args:
        path: of the file.
        images: [n, 3, H, W], as bytes; the activations' ranges are those that these have.
        config: of the network.
    """
    onnx = import_extra("onnx", "onnx", "export --int8")
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Images(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            starts = range(0, len(images), _AT_ONCE)
            self._left = iter([_inputs(images[start : start + _AT_ONCE], config) for start in starts])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._left, None)

    metadata = list(onnx.load(path).metadata_props)
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it advises what was done
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantized = Path(folder) / "quantized.onnx"
            quantize_static(
                path,
                quantized,
                Images(),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.MinMax,
                op_types_to_quantize=["Conv"],
            )
            model: Any = onnx.load(quantized)
    finally:
        logging.disable(level)
    del model.metadata_props[:]
    model.metadata_props.extend(metadata)
    path.write_bytes(model.SerializeToString())


def _inputs(images: np.ndarray, config: ModelConfig) -> dict[str, np.ndarray]:
    nothing = {"known": np.full((len(images), config.num_classes), np.nan, np.float32)} if config.takes_known else {}
    return {"images": images, **nothing}

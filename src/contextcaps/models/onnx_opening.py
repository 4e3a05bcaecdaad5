"""Open a model for ONNX Runtime: a file that `contextcaps export` wrote, or a folder with a graph beside weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from contextcaps.models.files import (
    CONFIG_FILE,
    GRAPH_FILE,
    WEIGHTS_FILE,
    ModelFileError,
    config_from_document,
    read_config,
)
from contextcaps.models.onnx_file import OnnxFile, read_onnx_file, require_sealed
from contextcaps.models.onnx_scorer import OnnxScorer
from contextcaps.models.trained import Trained
from contextcaps.models.weight_files import WeightFile
from contextcaps.plain_files import parse_json

__all__ = ["METADATA", "ONNX_FORMAT", "PREFIX", "open_onnx_file", "open_onnx_folder"]

METADATA = "contextcaps"
"""Key of the file's metadata under which JSON describes the model."""
ONNX_FORMAT = "contextcaps-onnx-1"
"""Its `format`, by which a foreign file is recognised."""
PREFIX = "network."
"""Names of weights in a graph begin with it, and go on as in the weights' file."""


def open_onnx_file(path: Path, threads: int | None = None) -> tuple[OnnxScorer, Trained | None]:
    """Open a file that is a whole tagger, as `contextcaps export` writes it.

    Raises:
        ModelFileError: it cannot be read, or is not such a file.
    """
    file = read_onnx_file(path)
    document = _description(path, file)
    config = config_from_document(path, document.get("config"))
    found = document.get("trained")
    trained = None if found is None else Trained.from_document(found, path, config)
    return OnnxScorer(path, file, config, threads=threads), trained


def open_onnx_folder(folder: Path, threads: int | None = None) -> tuple[OnnxScorer, Trained | None]:
    """Open a model's folder that has a graph beside its weights.

    Raises:
        ModelFileError: a file cannot be read, or they do not belong together.
    """
    path = folder / GRAPH_FILE
    config, file = read_config(folder / CONFIG_FILE), read_onnx_file(path, has_weights=False)
    document = _description(path, file)
    weights = _folded_weights(path, file, WeightFile(folder / WEIGHTS_FILE), document.get("norm_eps"))
    return OnnxScorer(path, file, config, weights, threads), Trained.read(folder, config)


def _description(path: Path, file: OnnxFile) -> dict[str, Any]:
    """Return what the metadata say of the model."""
    try:
        document = parse_json(file.metadata[METADATA])
    except KeyError:
        document = None
    except ValueError as error:
        raise ModelFileError(f"{path}: its metadata are cut off or no JSON ({error}); export it again") from None
    if not isinstance(document, dict) or document.get("format") != ONNX_FORMAT:
        raise ModelFileError(
            f"{path}: an ONNX file, but not one of contextcaps (its metadata have no {json.dumps(ONNX_FORMAT)}); "
            "expected one that contextcaps export wrote"
        )
    require_sealed(path, file.content)
    return document


def _folded_weights(path: Path, file: OnnxFile, weights: WeightFile, eps: Any) -> dict[str, np.ndarray]:
    """Return the weights that a graph asks for, with batch normalisations folded into the convolutions before them.

    weight · γ / √(variance + eps) and β − mean · γ / √(variance + eps), as `CapsuleNetwork.folded` computes it.
    """
    found = {}
    for given, shape in file.external.items():
        name = given.removeprefix(PREFIX)
        stem, _, last = name.rpartition(".convolution.")
        norm = f"{stem}.norm."
        if weights.shape(f"{norm}running_var") is not None and last in ("weight", "bias"):
            gamma, beta, mean, variance = (
                weights.read(norm + each) for each in ("weight", "bias", "running_mean", "running_var")
            )
            if isinstance(eps, bool) or not isinstance(eps, int | float):
                raise ModelFileError(f"{path}: norm_eps: expected a number, got {eps!r}; export it again")
            factor = gamma / np.sqrt(variance + np.float32(eps))  # [C']
            is_weight = last == "weight"
            array = weights.read(name) * factor[:, None, None, None] if is_weight else beta - mean * factor  # [C', …]
        elif weights.shape(name) is None:
            raise ModelFileError(f"{path}: needs the weight {name!r}, which is not in {weights.path}")
        else:
            array = weights.read(name)
        if array.shape != shape:
            raise ModelFileError(
                f"{path}: needs the weight {name!r} of shape {list(shape)}, which has {list(array.shape)} in "
                f"{weights.path}"
            )
        found[given] = np.asarray(array, order="C")
    return found

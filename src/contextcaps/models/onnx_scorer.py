"""Scores by ONNX Runtime, without torch: of a file that `contextcaps export` wrote, or of a shipped model's folder."""

import hashlib
import json
import os
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from contextcaps.cores import computing_threads
from contextcaps.extras import import_extra
from contextcaps.models.config import ModelConfig
from contextcaps.models.explainable import require_explainable
from contextcaps.models.files import (
    CONFIG_FILE,
    GRAPH_FILE,
    WEIGHTS_FILE,
    ModelFileError,
    config_from_document,
    read_config,
)
from contextcaps.models.onnx_division import Division, divide
from contextcaps.models.onnx_file import OnnxFile, read_onnx_file, require_sealed
from contextcaps.models.parts import LogitParts
from contextcaps.models.trained import Trained
from contextcaps.models.weight_files import WeightFile
from contextcaps.out_of_memory import memory_for
from contextcaps.plain_files import parse_json

__all__ = ["CONSTANT", "METADATA", "ONNX_FORMAT", "PREFIX", "OnnxScorer", "open_onnx_file", "open_onnx_folder"]

METADATA = "contextcaps"
"""Key of the file's metadata under which JSON describes the model."""
ONNX_FORMAT = "contextcaps-onnx-1"
"""Its `format`, by which a foreign file is recognised."""

_IMAGES_AT_ONCE = 4
"""More at once are no faster, and their feature maps take memory."""
_NUMBERS_AT_ONCE = 1 << 22
"""Numbers that go at once to the part that sees known labels: 16 MiB."""
CONSTANT = "constant: "
"""Names of the outputs with the constant parts of logits begin with it."""
PREFIX = "network."
"""Names of weights in a graph begin with it, and go on as in the weights' file."""
_LOGGED_FROM = 4
"""Severity from which ONNX Runtime writes to standard error; errors are raised, too."""

_abandoned: list[Any] = []  # sessions of a parent process: to end one would wait for threads that are not in this one
_scorers: "weakref.WeakSet[OnnxScorer]" = weakref.WeakSet()


def _begin_anew() -> None:
    for scorer in list(_scorers):
        scorer.forget_session()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


class OnnxScorer:
    """Scores images by ONNX Runtime on the CPU.

    Args:
        path: where the graph came from, for messages.
        file: the graph.
        config: of the network.
        weights: name → array of float32, those that are not in the graph.
        threads: by default $OMP_NUM_THREADS, or as many as there are cores.

    Raises:
        ImportError: ONNX Runtime is not installed.
        ModelFileError: it cannot load the graph, or the graph is not one of this configuration.
    """

    def __init__(
        self,
        path: Path,
        file: OnnxFile,
        config: ModelConfig,
        weights: Mapping[str, np.ndarray] | None = None,
        threads: int | None = None,
    ) -> None:
        self.path, self.config = path, config
        self._file, self._weights = file, dict(weights or {})
        self._threads = computing_threads() if threads is None else threads
        self._division = divide(file.content) if config.takes_known else None
        self._made: Any = self._session()
        self._rest: Any = None  # of the part that sees known labels, made when it is first needed
        passed, added = ((), ()) if self._division is None else (self._division.passed, self._division.added)
        self._outputs = [each.name for each in self._made.get_outputs() if each.name not in added]
        self._check()
        self._can_be_told = bool(passed) and all(
            _is_row(each) for each in self._made.get_outputs() if each.name in passed
        )
        _scorers.add(self)

    @property
    def device(self) -> str:
        """The device that computes."""
        return "cpu"

    @property
    def takes_any_size(self) -> bool:
        """Return whether images may have another size than the configuration's."""
        sides = next(each.shape for each in self._made.get_inputs() if each.name == "images")[2:]
        return not any(isinstance(side, int) for side in sides)

    def scores(self, images: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
        with memory_for(len(images), self.device):
            pieces = self._pieces(images, known)
        scores = np.concatenate(pieces) if pieces else np.zeros((0, self.config.num_classes), np.float32)
        if scores.shape != (len(images), self.config.num_classes):
            raise ModelFileError(
                f"{self.path}: gives scores of shape {list(scores.shape)} for {len(images)} images; expected "
                f"{self.config.num_classes} classes, as its metadata name; export it again"
            )
        return scores

    def _pieces(self, images: np.ndarray, known: np.ndarray | None) -> list[np.ndarray]:
        """Return the scores of a few images each, of several such pieces at once: no thread then waits for another."""

        def scored(start: int) -> np.ndarray:
            return self._run(images[start : start + _IMAGES_AT_ONCE], known, ["scores"])[0]

        starts = range(0, len(images), _IMAGES_AT_ONCE)
        at_once = min(self._threads, len(starts))
        if at_once < 2:
            return [scored(start) for start in starts]
        if self._made is None:
            self._made = self._session()  # one for all
        with ThreadPoolExecutor(at_once, "score") as pool:
            return list(pool.map(scored, starts))

    def parts(self, image: np.ndarray, *known: np.ndarray | None) -> list[LogitParts]:
        self.require_explainable()
        names = list(self._outputs)
        return [
            _as_parts(dict(zip(names, (each[0] for each in self._run(image[None], one, names)), strict=True)))
            for one in known or (None,)
        ]

    @property
    def can_be_told(self) -> bool:
        """Return whether known labels can be told of an image that is computed already: `untold`, `told`."""
        return self._can_be_told

    def untold(self, image: np.ndarray) -> dict[str, np.ndarray]:
        """Compute all of an image [3, H, W] that no known label changes: name → values, without the batch's axis."""
        division = self._require_division()
        names = list(dict.fromkeys([*division.passed, *(each for each in self._outputs if each not in division.told)]))
        return {name: each[0] for name, each in zip(names, self._run(image[None], None, names), strict=True)}

    def told(self, untold: Mapping[str, np.ndarray], known: np.ndarray) -> np.ndarray:
        """Return the scores [T, J] of one image with each of some sets of known labels [T, J]."""
        division = self._require_division()
        at_once = max(1, _NUMBERS_AT_ONCE // sum(untold[name].size for name in division.passed))
        pieces = [
            self._run_rest(untold, known[start : start + at_once], ["scores"])[0]
            for start in range(0, len(known), at_once)
        ]
        return np.concatenate(pieces)

    def expected_drops(self, untold: Mapping[str, np.ndarray], known: np.ndarray | None) -> np.ndarray:
        """Return by how many bits the answer about each class of an image [J] is expected to settle the others.

        As `contextcaps.models.expected_drops` has it, there for networks of torch; NaN where a label is known.
        """
        row = self._nothing if known is None else known
        (open_places,) = np.isnan(row).nonzero()
        sets = np.repeat(row[None], 1 + 2 * len(open_places), axis=0)  # [1 + 2 O, J]
        which = np.arange(len(open_places))
        sets[1 + which, open_places] = 1
        sets[1 + len(which) + which, open_places] = 0
        plain, *answered = np.split(self.told(untold, sets).astype(np.float64), [1, 1 + len(which)])  # [O, J] each
        chance = plain[0, open_places, None]  # [O, 1]
        present, absent = answered
        drop = _binary_entropy(chance * present + (1 - chance) * absent)  # [O, J]
        drop -= chance * _binary_entropy(present) + (1 - chance) * _binary_entropy(absent)
        drop[which, open_places] = 0
        found = np.full(len(row), np.nan)
        found[open_places] = drop.sum(axis=1)
        return found

    def parts_of(self, untold: Mapping[str, np.ndarray], known: np.ndarray | None) -> LogitParts:
        """Return what `parts` does for one set of known labels [J], from what `untold` gave."""
        division = self._require_division()
        row = self._nothing if known is None else known
        found = self._run_rest(untold, row[None], list(division.told))
        return _as_parts({**untold, **{name: each[0] for name, each in zip(division.told, found, strict=True)}})

    def require_explainable(self) -> None:
        require_explainable(self.config)
        if "evidence" not in self._outputs:
            raise ValueError(
                f"explain: {self.path} was exported without what that needs; export it again with --explain"
            )

    def fingerprint(self) -> bytes:
        digest = hashlib.sha256(self._file.content)
        for name in sorted(self._weights):
            digest.update(self._weights[name].tobytes())
        return digest.digest()

    def forget_session(self) -> None:
        """Leave the session to the parent process; this one makes its own at the next call, with one thread."""
        _abandoned.append(self._made)
        _abandoned.append(self._rest)
        self._made, self._rest, self._threads = None, None, 1

    @property
    def _nothing(self) -> np.ndarray:
        """Return labels [J] of which none is known."""
        return np.full(self.config.num_classes, np.nan, np.float32)

    def _require_division(self) -> Division:
        if self._division is None or not self._can_be_told:
            raise ValueError(f"{self.path}: its graph cannot be divided at known labels")
        return self._division

    def _session(self) -> Any:
        """Return a session of the whole graph."""
        whole = self._file.content if self._division is None else self._division.whole
        return self._session_of(whole, self._weights)

    def _session_of(self, content: bytes, weights: Mapping[str, np.ndarray]) -> Any:
        ort = import_extra("onnxruntime", "onnx", "tagging without PyTorch")
        options = ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.log_severity_level = _LOGGED_FROM
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other threads decode meanwhile
        if weights:
            values = [ort.OrtValue.ortvalue_from_numpy(each) for each in weights.values()]
            options.add_external_initializers(list(weights), values)
        try:
            return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except MemoryError:
            raise
        except Exception as error:  # its classes are many, and derive from Exception alone
            why = " ".join(str(error).split())[:300]
            if "opset" in why.lower():
                why = f"it needs version {self._file.opset} of ONNX's operators"
            raise ModelFileError(
                f"{self.path}: ONNX Runtime {ort.__version__} cannot load it: {why}; install a newer one, or "
                "export the model again"
            ) from None

    def _run(self, images: np.ndarray, known: np.ndarray | None, names: list[str]) -> list[np.ndarray]:
        if self._made is None:
            self._made = self._session()
        inputs: dict[str, np.ndarray] = {"images": images}
        if self.config.takes_known:
            row = self._nothing if known is None else known
            inputs["known"] = np.ascontiguousarray(np.broadcast_to(row, (len(images), len(row))), dtype=np.float32)
        return self._run_session(self._made, names, inputs)

    def _run_rest(self, untold: Mapping[str, np.ndarray], known: np.ndarray, names: list[str]) -> list[np.ndarray]:
        """Run the part that sees known labels [T, J], for one image."""
        division = self._require_division()
        if self._rest is None:
            weights = {name: each for name, each in self._weights.items() if name in division.weights}
            self._rest = self._session_of(division.rest, weights)
        inputs = {name: np.repeat(untold[name][None], len(known), axis=0) for name in division.passed}
        inputs["known"] = np.ascontiguousarray(known, dtype=np.float32)
        return self._run_session(self._rest, names, inputs)

    def _run_session(self, session: Any, names: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        options = import_extra("onnxruntime", "onnx", "tagging without PyTorch").RunOptions()
        options.only_execute_path_to_fetches = True
        try:
            found: list[np.ndarray] = session.run(names, inputs, options)
        except Exception as error:
            why = " ".join(str(error).split())
            if "alloc" in why.lower():
                raise MemoryError(why) from None
            raise ModelFileError(f"{self.path}: ONNX Runtime cannot compute it: {why[:300]}; export it again") from None
        return found

    def _check(self) -> None:
        """Refuse a graph that does not take and give what the configuration says."""
        config = self.config
        inputs = {each.name: (each.type, list(each.shape)) for each in self._made.get_inputs()}
        height, width = config.image_size
        expected: dict[str, tuple[str, list[int]]] = {"images": ("tensor(uint8)", [3, height, width])}
        if config.takes_known:
            expected["known"] = ("tensor(float)", [config.num_classes])
        if inputs.keys() != expected.keys():
            self._refuse(f"takes {', '.join(sorted(inputs)) or 'nothing'}; expected {' and '.join(expected)}")
        for name, (kind, shape) in expected.items():
            has, sides = inputs[name]
            fits = len(sides) == len(shape) + 1 and all(
                not isinstance(side, int) or side == one for side, one in zip(sides[1:], shape, strict=True)
            )
            if has != kind or not fits or isinstance(sides[0], int):
                self._refuse(f"takes {name} as {has} of shape {sides}; expected {kind} of shape {['batch', *shape]}")
        outputs = {each.name: list(each.shape) for each in self._made.get_outputs()}
        if "scores" not in outputs:
            self._refuse("gives no scores")
        sides = outputs["scores"]
        if len(sides) != 2 or (isinstance(sides[1], int) and sides[1] != config.num_classes):
            self._refuse(f"gives scores of shape {sides}; its metadata name {config.num_classes} classes")

    def _refuse(self, why: str) -> None:
        raise ModelFileError(f"{self.path}: not a model of its own metadata: it {why}; export it again")


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


def _is_row(output: Any) -> bool:
    """Return whether an output is of float32, and has a row for each image."""
    return output.type == "tensor(float)" and bool(output.shape) and not isinstance(output.shape[0], int)


def _binary_entropy(probabilities: np.ndarray) -> np.ndarray:
    """Return the entropy in bits of each probability of a yes-or-no variable."""
    absent, tiny = 1 - probabilities, np.finfo(probabilities.dtype).tiny
    kept = [each * np.log2(np.maximum(each, tiny)) for each in (probabilities, absent)]
    return np.negative(kept[0] + kept[1])


def _as_parts(outputs: Mapping[str, np.ndarray]) -> LogitParts:
    return LogitParts(
        outputs["scores"],
        outputs["logits"],
        outputs["evidence"],
        outputs.get("branch"),
        outputs.get("messages"),
        {name.removeprefix(CONSTANT): array for name, array in outputs.items() if name.startswith(CONSTANT)},
        outputs.get("length"),
        outputs.get("length_capsules"),
        outputs.get("length_bias"),
    )

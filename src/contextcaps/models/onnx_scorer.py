"""Score images by ONNX Runtime, without torch."""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from contextcaps.cores import computing_threads
from contextcaps.models.config import ModelConfig
from contextcaps.models.explainable import require_explainable
from contextcaps.models.files import ModelFileError
from contextcaps.models.onnx_division import Division, divide
from contextcaps.models.onnx_file import OnnxFile
from contextcaps.models.onnx_session import OnnxSession
from contextcaps.models.parts import LogitParts
from contextcaps.out_of_memory import memory_for

__all__ = ["CONSTANT", "OnnxScorer", "as_parts"]

CONSTANT = "constant: "
"""Names of the outputs with the constant parts of logits begin with it."""

_IMAGES_AT_ONCE = 4
"""More at once are no faster, and their feature maps take memory."""


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
        division = divide(file.content) if config.takes_known else None
        self.session = OnnxSession(
            path,
            file.content if division is None else division.whole,
            file.opset,
            self._weights,
            computing_threads() if threads is None else threads,
        )
        """Computes the whole graph."""
        added = () if division is None else division.added
        self.outputs = [each.name for each in self.session.outputs if each.name not in added]
        """Names of what the graph gives, as it was exported."""
        self._check()
        if division is not None:
            passed = [each for each in self.session.outputs if each.name in division.passed]
            division = division if all(_is_row(each) for each in passed) else None
        self.division: Division | None = division
        """The graph divided at known labels; None where it cannot be."""

    @property
    def device(self) -> str:
        """The device that computes."""
        return "cpu"

    @property
    def takes_any_size(self) -> bool:
        """Return whether images may have another size than the configuration's."""
        sides = next(each.shape for each in self.session.inputs if each.name == "images")[2:]
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
            return self.run(images[start : start + _IMAGES_AT_ONCE], known, ["scores"])[0]

        starts = range(0, len(images), _IMAGES_AT_ONCE)
        at_once = min(self.session.threads, len(starts))
        if at_once < 2:
            return [scored(start) for start in starts]
        with ThreadPoolExecutor(at_once, "score") as pool:
            return list(pool.map(scored, starts))

    def parts(self, image: np.ndarray, *known: np.ndarray | None) -> list[LogitParts]:
        self.require_explainable()
        names = self.outputs
        return [
            as_parts(dict(zip(names, (each[0] for each in self.run(image[None], one, names)), strict=True)))
            for one in known or (None,)
        ]

    def require_explainable(self) -> None:
        require_explainable(self.config)
        if "evidence" not in self.outputs:
            raise ValueError(
                f"explain: {self.path} was exported without what that needs; export it again with --explain"
            )

    def fingerprint(self) -> bytes:
        digest = hashlib.sha256(self._file.content)
        for name in sorted(self._weights):
            digest.update(self._weights[name].tobytes())
        return digest.digest()

    def row(self, known: np.ndarray | None) -> np.ndarray:
        """Return known labels [J] as the graph takes them, NaN for what is not known."""
        return np.full(self.config.num_classes, np.nan, np.float32) if known is None else known

    def run(self, images: np.ndarray, known: np.ndarray | None, names: list[str]) -> list[np.ndarray]:
        """Return the outputs of these names for images [B, 3, H, W], of each of which `known` [J] is known."""
        inputs: dict[str, np.ndarray] = {"images": images}
        if self.config.takes_known:
            row = self.row(known)
            inputs["known"] = np.ascontiguousarray(np.broadcast_to(row, (len(images), len(row))), dtype=np.float32)
        return self.session.run(names, inputs)

    def _check(self) -> None:
        """Refuse a graph that does not take and give what the configuration says."""
        config = self.config
        inputs = {each.name: (each.type, list(each.shape)) for each in self.session.inputs}
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
        outputs = {each.name: list(each.shape) for each in self.session.outputs}
        if "scores" not in outputs:
            self._refuse("gives no scores")
        sides = outputs["scores"]
        if len(sides) != 2 or (isinstance(sides[1], int) and sides[1] != config.num_classes):
            self._refuse(f"gives scores of shape {sides}; its metadata name {config.num_classes} classes")

    def _refuse(self, why: str) -> None:
        raise ModelFileError(f"{self.path}: not a model of its own metadata: it {why}; export it again")


def _is_row(output: Any) -> bool:
    """Return whether an output is of float32, and has a row for each image."""
    return output.type == "tensor(float)" and bool(output.shape) and not isinstance(output.shape[0], int)


def as_parts(outputs: Mapping[str, np.ndarray]) -> LogitParts:
    """Return the parts of an image's logits from the outputs of a graph, by name, without the batch's axis."""
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

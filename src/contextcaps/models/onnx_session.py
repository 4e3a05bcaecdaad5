"""Run a graph by ONNX Runtime on the CPU; a forked process opens it anew."""

import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from contextcaps.extras import import_extra
from contextcaps.models.files import ModelFileError

__all__ = ["OnnxSession"]

_LOGGED_FROM = 4
"""Severity from which ONNX Runtime writes to standard error; errors are raised, too."""

_abandoned: list[Any] = []  # sessions of a parent process: to end one would wait for threads that are not in this one
_sessions: "weakref.WeakSet[OnnxSession]" = weakref.WeakSet()


def _begin_anew() -> None:
    for session in list(_sessions):
        session.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


class OnnxSession:
    """Runs a graph, which ONNX Runtime loads when it is first needed.

    Args:
        path: where the graph came from, for messages.
        content: the graph.
        opset: version of ONNX's own operators that it needs, for messages.
        weights: name → array of float32, those that are not in the graph.
        threads: that compute.
    """

    def __init__(self, path: Path, content: bytes, opset: int, weights: Mapping[str, np.ndarray], threads: int) -> None:
        self.path, self.threads = path, threads
        self._content, self._opset, self._weights = content, opset, weights
        self._made: Any = None
        _sessions.add(self)

    def part(self, content: bytes, weights: frozenset[str]) -> "OnnxSession":
        """Return a session of a part of the graph, which takes those of the weights that are named."""
        taken = {name: each for name, each in self._weights.items() if name in weights}
        return OnnxSession(self.path, content, self._opset, taken, self.threads)

    @property
    def inputs(self) -> Sequence[Any]:
        """What the graph takes: each with `name`, `type` and `shape`."""
        found: Sequence[Any] = self._opened().get_inputs()
        return found

    @property
    def outputs(self) -> Sequence[Any]:
        """What the graph gives: each with `name`, `type` and `shape`."""
        found: Sequence[Any] = self._opened().get_outputs()
        return found

    def run(self, names: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of these names; what they do not depend on is not computed.

        Raises:
            ModelFileError: ONNX Runtime cannot compute them.
            MemoryError: there is too little for them.
        """
        session = self._opened()
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

    def forget(self) -> None:
        """Leave what is open to the parent process; this one opens its own at the next call, with one thread."""
        _abandoned.append(self._made)
        self._made, self.threads = None, 1

    def _opened(self) -> Any:
        """Return ONNX Runtime's session; open it if that was not done.

        Raises:
            ImportError: ONNX Runtime is not installed.
            ModelFileError: it cannot load the graph.
        """
        if self._made is None:
            self._made = self._open()
        return self._made

    def _open(self) -> Any:
        ort = import_extra("onnxruntime", "onnx", "tagging without PyTorch")
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = _LOGGED_FROM
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other threads decode meanwhile
        if self._weights:
            values = [ort.OrtValue.ortvalue_from_numpy(each) for each in self._weights.values()]
            options.add_external_initializers(list(self._weights), values)
        try:
            return ort.InferenceSession(self._content, options, providers=["CPUExecutionProvider"])
        except MemoryError:
            raise
        except Exception as error:  # its classes are many, and derive from Exception alone
            why = " ".join(str(error).split())[:300]
            if "opset" in why.lower():
                why = f"it needs version {self._opset} of ONNX's operators"
            raise ModelFileError(
                f"{self.path}: ONNX Runtime {ort.__version__} cannot load it: {why}; install a newer one, or "
                "export the model again"
            ) from None

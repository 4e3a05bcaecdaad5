"""Load a trained model for tagging, by its name, its folder or its file."""

from pathlib import Path
from typing import Any

from contextcaps.models.loading import DEFAULT_MODEL
from contextcaps.models.runtime import Runtime, open_scorer
from contextcaps.tagging.tagger import Tagger

__all__ = ["load"]


def load(path: str | Path = DEFAULT_MODEL, device: Any = "auto", runtime: Runtime = "auto") -> Tagger:
    """Load a trained model for tagging; without a name the default of those that are shipped.

    Args:
        path: the name of a shipped model (`contextcaps models` lists them), a file that `contextcaps export` wrote, a
            run's folder, a model's as `save_pretrained` writes it, or `hf:OWNER/NAME` on the Hugging Face Hub. A folder
            that is called as a shipped model is reached as "./NAME".
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".
        runtime: what computes, "onnx" or "torch"; "auto": ONNX Runtime on a CPU, where the model has a graph for it.

    Raises:
        ModelFileError: there is no model, or it cannot be read.
        ImportError: PyTorch or ONNX Runtime is needed and not installed.
        ValueError: there is no such device.
    """
    scorer, trained = open_scorer(path, device, runtime)
    return Tagger(scorer, trained, source=None if Path(path).suffix == ".onnx" else path)

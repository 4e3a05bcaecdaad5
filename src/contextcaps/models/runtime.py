"""The one place that chooses who computes a model's scores: ONNX Runtime or PyTorch."""

import glob
import importlib.util
import shutil
from pathlib import Path
from typing import Any, Literal

from contextcaps.extras import import_extra
from contextcaps.models.files import GRAPH_FILE
from contextcaps.models.loading import HUB, model_folder
from contextcaps.models.scorer import Scorer
from contextcaps.models.trained import Trained

__all__ = ["Runtime", "is_installed", "open_scorer"]

Runtime = Literal["auto", "onnx", "torch"]


def open_scorer(model: str | Path, device: Any = "auto", runtime: Runtime = "auto") -> tuple[Scorer, Trained | None]:
    """Open a model for tagging.

    On a CPU ONNX Runtime computes wherever there is a graph for it, as it starts three times as fast
    (docs/results/speed.md#without-pytorch); PyTorch computes on a GPU, and models without a graph, such as a run's.

    Args:
        model: an ONNX file that `contextcaps export` wrote, or as for `load_model`.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".
        runtime: "onnx" or "torch" alone may compute; "auto": see above.

    Raises:
        ModelFileError: there is no model, or it cannot be read.
        ImportError: PyTorch or ONNX Runtime is needed and not installed.
        ValueError: there is no such device, or what was asked for cannot compute this model.
    """
    if runtime not in ("auto", "onnx", "torch"):
        raise ValueError(f"runtime: expected 'auto', 'onnx' or 'torch', got {runtime!r}")
    path = Path(model).expanduser()
    if path.suffix == ".onnx" and not path.is_dir():
        if runtime == "torch" or str(device) not in ("auto", "cpu"):
            raise ValueError(f"{model}: an ONNX file is computed by ONNX Runtime on the CPU; name the model it is of")
        from contextcaps.models.onnx_opening import open_onnx_file

        return open_onnx_file(path)
    is_on_hub = isinstance(model, str) and model.startswith(HUB)
    folder = None if is_on_hub else model_folder(model)
    has_graph = folder is not None and (folder / GRAPH_FILE).is_file()
    if runtime == "onnx" and not has_graph:
        raise ValueError(
            f"{model}: has no {GRAPH_FILE}; contextcaps export {model} --to onnx makes a file that has all"
        )
    if (
        runtime != "torch"
        and folder is not None
        and has_graph
        and _is_for_a_cpu(device)
        and is_installed("onnxruntime")
    ):
        from contextcaps.models.onnx_opening import open_onnx_folder

        return open_onnx_folder(folder)
    import_extra("torch", "train", f"{model}: its network")
    from contextcaps.models.loading import load_model
    from contextcaps.models.torch_scorer import TorchScorer, checked_device

    chosen = checked_device(device)  # before the work, not after it
    network, trained = load_model(model, chosen)
    return TorchScorer(network, chosen), trained


def _is_for_a_cpu(device: Any) -> bool:
    """Return whether the CPU computes; torch is imported only where it may find a GPU."""
    if str(device) != "auto":
        return str(device) == "cpu"
    if not is_installed("torch") or not (glob.glob("/dev/nvidia[0-9]*") or shutil.which("nvidia-smi")):
        return True
    from contextcaps.models.torch_scorer import checked_device

    return checked_device("auto").type == "cpu"


def is_installed(module: str) -> bool:
    """Return whether a module can be imported; it is not imported for that."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False

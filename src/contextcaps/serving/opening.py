"""Open a model for the server: by ONNX Runtime or by torch, as `contextcaps.load` chooses."""

import os

from contextcaps.cores import usable_cores
from contextcaps.serving.engine import Engine
from contextcaps.tagging.loading import load
from contextcaps.tagging.tagger import Tagger

__all__ = ["engine_of", "open_engine"]


def open_engine(name: str, place: str, device: str, workers: int = 1) -> Engine:
    """Load a model for the server.

    Args:
        name: by which clients ask for it.
        place: as for `contextcaps.load`.
        device: as for `contextcaps.load`.
        workers: processes that share the cores.
    """
    if workers > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // workers)))
    return engine_of(name, load(place, device), workers)


def engine_of(name: str, tagger: Tagger, workers: int = 1) -> Engine:
    """Return the engine of a model that is loaded."""
    if not tagger.computes_by_torch:
        from contextcaps.serving.onnx_engine import OnnxEngine

        return OnnxEngine(name, tagger)
    from contextcaps.serving.torch_engine import TorchEngine

    return TorchEngine(name, tagger, workers)

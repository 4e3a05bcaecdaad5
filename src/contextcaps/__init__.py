"""Multi-label image tagging with context-aware capsule networks."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextcaps.data import open_source
    from contextcaps.evaluation.evaluate import evaluate
    from contextcaps.experiments.ablation import ablate
    from contextcaps.models import CapsuleNetwork, ModelConfig, create_model, list_models
    from contextcaps.tagging import load
    from contextcaps.training.config import TrainConfig
    from contextcaps.training.trainer import resume, train

__version__ = "0.1.0"

__all__ = [
    "CapsuleNetwork",
    "ModelConfig",
    "TrainConfig",
    "ablate",
    "create_model",
    "evaluate",
    "list_models",
    "load",
    "open_source",
    "resume",
    "train",
    "__version__",
]

_HOMES = {
    "CapsuleNetwork": "contextcaps.models",
    "ModelConfig": "contextcaps.models",
    "create_model": "contextcaps.models",
    "list_models": "contextcaps.models",
    "open_source": "contextcaps.data",
    "TrainConfig": "contextcaps.training.config",
    "train": "contextcaps.training.trainer",
    "resume": "contextcaps.training.trainer",
    "evaluate": "contextcaps.evaluation.evaluate",
    "load": "contextcaps.tagging",
    "ablate": "contextcaps.experiments.ablation",
}


def __getattr__(name: str) -> Any:
    """Names are imported when they are asked for, so that the command line answers without waiting for torch."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'contextcaps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

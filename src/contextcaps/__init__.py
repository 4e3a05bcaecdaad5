"""Multi-label image tagging with context-aware capsule networks."""

from typing import TYPE_CHECKING

from contextcaps.lazy_names import lazy_names
from contextcaps.version import __version__

if TYPE_CHECKING:
    from contextcaps.data import open_source
    from contextcaps.experiments.ablation.ablation import ablate
    from contextcaps.experiments.audit import audit
    from contextcaps.models import CapsuleNetwork, ModelConfig, create_model, list_models
    from contextcaps.tagging import load
    from contextcaps.training.config import TrainConfig
    from contextcaps.training.evaluate import evaluate
    from contextcaps.training.trainer import resume, train

__all__ = [
    "CapsuleNetwork",
    "ModelConfig",
    "TrainConfig",
    "ablate",
    "audit",
    "create_model",
    "evaluate",
    "list_models",
    "load",
    "open_source",
    "resume",
    "train",
    "__version__",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "models": ["CapsuleNetwork", "ModelConfig", "create_model", "list_models"],
        "data": ["open_source"],
        "training.config": ["TrainConfig"],
        "training.trainer": ["train", "resume"],
        "training.evaluate": ["evaluate"],
        "tagging": ["load"],
        "experiments.ablation.ablation": ["ablate"],
        "experiments.audit": ["audit"],
    },
)

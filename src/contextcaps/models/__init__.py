"""Whole networks: backbones, the capsule head, baseline heads, presets, a registry; what computes their scores."""

from typing import TYPE_CHECKING

from contextcaps.lazy_names import lazy_names

if TYPE_CHECKING:
    from contextcaps.models.config import ModelConfig
    from contextcaps.models.files import ModelFileError
    from contextcaps.models.head import CapsuleHead
    from contextcaps.models.head_base import Intermediates, ModelOutput
    from contextcaps.models.network import CapsuleNetwork
    from contextcaps.models.registry import create_model, describe_model, list_models, model_config, register_model

__all__ = [
    "CapsuleHead",
    "CapsuleNetwork",
    "Intermediates",
    "ModelConfig",
    "ModelFileError",
    "ModelOutput",
    "create_model",
    "describe_model",
    "list_models",
    "model_config",
    "register_model",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "config": ["ModelConfig"],
        "head": ["CapsuleHead"],
        "head_base": ["Intermediates", "ModelOutput"],
        "network": ["CapsuleNetwork"],
        "registry": ["create_model", "describe_model", "list_models", "model_config", "register_model"],
        "files": ["ModelFileError"],
    },
)

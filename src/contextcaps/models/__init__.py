"""Whole networks: backbones, the capsule head, baseline heads, presets, a registry."""

from contextcaps.models.config import ModelConfig
from contextcaps.models.head import CapsuleHead
from contextcaps.models.head_base import Intermediates, ModelOutput
from contextcaps.models.network import CapsuleNetwork
from contextcaps.models.registry import create_model, describe_model, list_models, model_config, register_model
from contextcaps.models.saving import ModelFileError

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

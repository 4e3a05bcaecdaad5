"""Multi-label image tagging with context-aware capsule networks."""

from contextcaps.models import CapsuleNetwork, ModelConfig, create_model, list_models

__version__ = "0.1.0"

__all__ = ["CapsuleNetwork", "ModelConfig", "create_model", "list_models", "__version__"]

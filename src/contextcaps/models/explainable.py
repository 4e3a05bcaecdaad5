"""Which networks can explain their scores: those whose logits are an exact sum over capsules or positions."""

from contextcaps.models.config import ModelConfig
from contextcaps.models.presets import PRESETS

__all__ = ["explains", "require_explainable"]

_NOT_EXACT = ("em", "ml_decoder", "query2label", "c_tran")
"""Sections of heads whose logits are no sum over capsules or positions."""


def explains(config: ModelConfig) -> bool:
    """Return whether a network's logits have exact parts."""
    return all(getattr(config, section) is None for section in _NOT_EXACT)


def require_explainable(config: ModelConfig) -> None:
    """Refuse a network whose logits are no exact sum over capsules or positions."""
    if not explains(config):
        section = next(section for section in _NOT_EXACT if getattr(config, section) is not None)
        name = "EM routing" if section == "em" else f"the head {section}"
        able = (each for each, (_, own) in PRESETS.items() if all(own.get(section) is None for section in _NOT_EXACT))
        raise ValueError(
            f"explain: the scores of {name} are no exact sum over the image; presets that can explain are "
            f"{', '.join(able)}"
        )

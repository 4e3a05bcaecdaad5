"""Calibrated scores: one scale and one shift of all logits, after the head and the field.

Platt, "Probabilistic outputs for support vector machines", 1999; with a shift of zero it is temperature scaling, Guo et
al., "On Calibration of Modern Neural Networks", 2017, https://arxiv.org/abs/1706.04599.
"""

import torch
from torch import Tensor

from contextcaps.capsules import length_logits, length_of_logits, lengths, rescale_decisions
from contextcaps.capsules.guards import upcast
from contextcaps.models.head_base import ModelOutput
from contextcaps.models.sections import CalibrationConfig

__all__ = ["calibrate", "raw_decisions", "scale_and_shift"]


def scale_and_shift(logits: Tensor, calibration: CalibrationConfig) -> Tensor:
    """Return scale · logits + shift, in float32 at least."""
    return calibration.scale * upcast(logits) + calibration.shift


def calibrate(output: ModelOutput, calibration: CalibrationConfig, known: Tensor | None = None) -> ModelOutput:
    """Return a network's output with calibrated scores and logits [B, J], and decisions of those lengths [B, J, I].

    Args:
        output: scores that are lengths of capsules have no logits; those of `length_logits` stand in for them.
        calibration: scale and shift.
        known: [B, J], what was told of the labels, NaN where nothing was; its scores stay what was told.
    """
    logits = length_logits(output.scores) if output.logits is None else output.logits  # [B, J]
    logits = scale_and_shift(logits, calibration)  # [B, J]
    scores = torch.sigmoid(logits).to(output.scores.dtype)  # [B, J]
    if known is not None:
        scores = torch.where(known.isnan(), scores, output.scores)  # [B, J]
    decisions = None if output.decisions is None else rescale_decisions(output.decisions, scores)  # [B, J, I]
    return output._replace(scores=scores, decisions=decisions, logits=logits)


def raw_decisions(decisions: Tensor, calibration: CalibrationConfig, are_sigmoids: bool) -> Tensor:
    """Return decisions [B, J, I] with the lengths that they had before calibration, which a decoder was trained on.

    Args:
        decisions: of a calibrated network.
        calibration: scale and shift.
        are_sigmoids: whether the scores before it were sigmoids of logits, rather than lengths of capsules.
    """
    logits = torch.logit(lengths(decisions), eps=1e-6)  # [B, J]
    logits = (logits - calibration.shift) / calibration.scale  # [B, J]
    scores = torch.sigmoid(logits) if are_sigmoids else length_of_logits(logits)  # [B, J]
    return rescale_decisions(decisions, scores)

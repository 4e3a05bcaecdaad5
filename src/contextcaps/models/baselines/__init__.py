"""Heads to compare capsules with, on the same backbones, written from their papers."""

from contextcaps.models.baselines.baseline_head import BaselineHead
from contextcaps.models.baselines.c_tran import CTranHead
from contextcaps.models.baselines.csra import CSRAHead
from contextcaps.models.baselines.ml_decoder import MLDecoderHead
from contextcaps.models.baselines.ml_gcn import MLGCNHead
from contextcaps.models.baselines.pooling import PoolingHead
from contextcaps.models.baselines.query2label import Query2LabelHead
from contextcaps.models.config import ModelConfig

__all__ = [
    "CSRAHead",
    "CTranHead",
    "MLDecoderHead",
    "MLGCNHead",
    "PoolingHead",
    "Query2LabelHead",
    "BaselineHead",
    "build_baseline",
]


def build_baseline(config: ModelConfig, in_channels: int, grid: tuple[int, int]) -> BaselineHead:
    """Build the head that a configuration has, for features of so many channels on such a grid."""
    if config.pooling is not None:
        return PoolingHead(config, config.pooling, in_channels, grid)
    if config.csra is not None:
        return CSRAHead(config, config.csra, in_channels, grid)
    if config.ml_decoder is not None:
        return MLDecoderHead(config, config.ml_decoder, in_channels, grid)
    if config.query2label is not None:
        return Query2LabelHead(config, config.query2label, in_channels, grid)
    if config.ml_gcn is not None:
        return MLGCNHead(config, config.ml_gcn, in_channels, grid)
    if config.c_tran is not None:
        return CTranHead(config, config.c_tran, in_channels, grid)
    raise ValueError(f"config: expected one of a baseline head, got the head {config.head}")

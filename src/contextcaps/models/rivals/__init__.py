"""What one would use instead of capsules: heads on the same backbones, written from their papers."""

from contextcaps.models.config import ModelConfig
from contextcaps.models.rivals.head import RivalHead
from contextcaps.models.rivals.ml_decoder import MLDecoderHead
from contextcaps.models.rivals.ml_gcn import MLGCNHead
from contextcaps.models.rivals.pooling import PoolingHead
from contextcaps.models.rivals.query2label import Query2LabelHead

__all__ = ["MLDecoderHead", "MLGCNHead", "PoolingHead", "Query2LabelHead", "RivalHead", "build_rival"]

_HEADS: dict[str, type[RivalHead]] = {
    "gap": PoolingHead,
    "gmp": PoolingHead,
    "ml-decoder": MLDecoderHead,
    "query2label": Query2LabelHead,
    "ml-gcn": MLGCNHead,
}


def build_rival(config: ModelConfig, in_channels: int, grid: tuple[int, int]) -> RivalHead:
    """The head that a configuration names, for features of so many channels on such a grid."""
    return _HEADS[config.head](config, in_channels, grid)

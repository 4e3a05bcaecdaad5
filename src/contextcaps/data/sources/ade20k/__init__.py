"""Read ADE20K in its three layouts: the scene parsing challenge, the full release of 2016, the full release of 2021."""

from contextcaps.data.sources.ade20k.source import ADE20KSource

__all__ = ["ADE20KSource"]

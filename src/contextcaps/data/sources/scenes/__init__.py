"""Draw scenes in which context matters by construction: the built-in source, which needs no download."""

from contextcaps.data.sources.scenes.source import ScenesSource

__all__ = ["ScenesSource"]

"""Scenes that are drawn, not downloaded: the built-in source, in which context matters by construction."""

from contextcaps.data.sources.scenes.source import ScenesSource

__all__ = ["ScenesSource"]

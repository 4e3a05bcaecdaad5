"""The head without its votes in memory."""

from contextcaps.capsules.fused.lean import LeanVotes
from contextcaps.capsules.fused.votes import Backend, ImplicitVotes

__all__ = ["Backend", "ImplicitVotes", "LeanVotes"]

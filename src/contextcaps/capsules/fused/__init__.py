"""The head a tile of votes at a time: in plain PyTorch, or by Triton kernels, which keep them once, in compact form."""

from contextcaps.capsules.fused.lean import LeanVotes
from contextcaps.capsules.fused.votes import Backend, ImplicitVotes

__all__ = ["Backend", "ImplicitVotes", "LeanVotes"]

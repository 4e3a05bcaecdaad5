"""How much memory a training has needed so far."""

import sys
from typing import Any

import torch

__all__ = ["peak_memory"]


def peak_memory(before: Any = None) -> dict[str, Any]:
    """The most memory that this process has needed: `where`, `bytes`, and `capacity` of a GPU.

    On a GPU what torch has taken from it, freed pieces that it keeps included; otherwise the process's resident memory.

    Args:
        before: what this said in an earlier process of the same run; the larger one counts.
    """
    if torch.cuda.is_initialized():
        found: dict[str, Any] = {
            "where": "GPU",
            "bytes": torch.cuda.max_memory_reserved(),
            "capacity": torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory,
        }
    else:
        found = {"where": "process", "bytes": _resident()}
    if isinstance(before, dict) and before.get("where") == found["where"] and before.get("bytes", 0) > found["bytes"]:
        return before
    return found


def _resident() -> int:
    """The highest resident memory of this process; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size  # macOS counts in bytes, Linux in KiB

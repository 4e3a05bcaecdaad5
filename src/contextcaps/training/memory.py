"""Peak memory of a process, on the GPU and resident."""

import contextlib
import sys
from pathlib import Path
from typing import Any, Literal

import torch

__all__ = ["forget_peak", "forget_resident_peak", "peak_memory", "resident_memory"]


def peak_memory(before: Any = None) -> dict[str, Any]:
    """Return the most memory that this process has needed: `where`, `bytes`, and `capacity` of a GPU.

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
        found = {"where": "process", "bytes": _most_resident()}
    if isinstance(before, dict) and before.get("where") == found["where"] and before.get("bytes", 0) > found["bytes"]:
        return before
    return found


def forget_peak() -> None:
    """Reset the peak, where the system can, so that what was done before is not measured."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        forget_resident_peak()


def forget_resident_peak() -> None:
    """Reset VmHWM; OSError where the system cannot: not Linux, or not allowed."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def resident_memory(which: Literal["VmRSS", "VmHWM"]) -> int:
    """Return the resident bytes now (VmRSS) or at most (VmHWM); OSError where the system has no such file."""
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {which}")


def _most_resident() -> int:
    """Return the highest resident memory of this process; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        return resident_memory("VmHWM")
    try:
        import resource
    except ImportError:  # Windows
        return 0
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size  # macOS counts in bytes, others in KiB

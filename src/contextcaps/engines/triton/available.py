"""Find out if the Triton kernels can run here, and if not, why."""

import importlib.util
import os

import torch

__all__ = ["INTERPRETED", "why_not_triton"]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""True where Triton runs its kernels on the CPU, in Python (for tests). Triton itself asks but once, too."""

_INSTALLED = importlib.util.find_spec("triton") is not None
_KINDS = (torch.float32, torch.bfloat16, torch.float16)


def why_not_triton(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return what keeps the Triton kernels from computing there and in this precision; None if nothing does."""
    if not _INSTALLED:
        return "Triton is not installed"
    if dtype not in _KINDS:
        return f"the kernels know float32, bfloat16 and float16, not {str(dtype).removeprefix('torch.')}"
    if INTERPRETED:
        return None
    if device.type != "cuda":
        return f"the kernels run on GPUs, not on {device.type}"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        return "the kernels need a GPU of compute capability 8.0 or higher"
    return None

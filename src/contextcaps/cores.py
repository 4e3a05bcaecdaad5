"""The processor's cores that this process may use."""

import os

__all__ = ["computing_threads", "usable_cores"]


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def computing_threads() -> int:
    """Return how many threads compute: $OMP_NUM_THREADS, which PyTorch and Ray obey, too, or one for each core."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else usable_cores()

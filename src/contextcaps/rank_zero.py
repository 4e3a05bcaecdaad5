"""Tell which of several processes writes and prints, before torch is loaded and the others are started."""

import os

__all__ = ["is_rank_zero"]


def is_rank_zero() -> bool:
    """Return whether this is the process that writes; also before the others have been started."""
    if "RANK" in os.environ:  # torchrun
        return os.environ["RANK"] == "0"
    return os.environ.get("LOCAL_RANK", "0") == "0" and os.environ.get("NODE_RANK", "0") == "0"

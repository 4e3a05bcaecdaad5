"""Exit codes of the command line, and of the process of a single run."""

import enum

__all__ = ["ExitCode"]


class ExitCode(enum.IntEnum):
    """How a process ended, for programs; people read the message on standard error."""

    DONE = 0
    FAILED = 1
    """The disk, the network, images that cannot be read, runs that failed."""
    BAD_INPUT = 2
    """Wrong words, settings or data; nothing was done."""
    DIVERGED = 3
    """A training's loss or weights became infinite or no numbers."""
    OUT_OF_MEMORY = 4
    INTERRUPTED = 130
    BROKEN_PIPE = 141

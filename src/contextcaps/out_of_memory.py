"""Out of memory: recognise the errors that mean it, and say it to who called."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

from contextcaps.exit_codes import ExitCode

__all__ = ["NotEnoughMemory", "is_out_of_memory", "memory_for"]


_SIGNS = (
    "out of memory",
    "can't allocate memory",
    "Cannot allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "could not create a memory",  # oneDNN, which computes convolutions on a CPU
    "could not create a primitive",
)
"""What libraries below torch say of it."""


class NotEnoughMemory(MemoryError):
    """The device or the machine has not enough memory; the message says for what, and what to do."""

    exit_code: ClassVar[ExitCode] = ExitCode.OUT_OF_MEMORY


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python or torch means that memory has run out.

    PyTorch has an exception of its own for a GPU's allocator. Its CPU allocator and CUDA's libraries raise a plain
    `RuntimeError`, which nothing but its text tells apart. torch is not imported: only what has loaded it raises them.
    """
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(sign in text for sign in _SIGNS)


@contextlib.contextmanager
def memory_for(images: int, device: Any) -> Iterator[None]:
    """Let a batch of so many images that is too large for a device say so, and what to do."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise NotEnoughMemory(
            f"batch_size: {images} images at once do not fit into the memory of {device}; try fewer"
        ) from None

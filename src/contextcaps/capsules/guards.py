"""Input guards of the capsule mathematics: one message with what was expected and what came.

Shapes and dtypes cost nothing to look at and are always checked. Looking for NaN reads the whole tensor and, on a GPU,
waits for it; it happens in eager mode, is skipped while a graph is being compiled or exported, and a caller that has
checked its input once (a whole network, a training loop that watches its loss) switches it off with `unchecked`.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["unchecked"]

_state = threading.local()


@contextmanager
def unchecked() -> Iterator[None]:
    """Keep the capsule functions from looking for NaN within a block; shapes and dtypes are checked as ever.

    >>> with unchecked():
    ...     require_values("votes", torch.tensor([float("nan")]))
    """
    before = getattr(_state, "unchecked", False)
    _state.unchecked = True
    try:
        yield
    finally:
        _state.unchecked = before


def require_tensor(name: str, tensor: Tensor, legend: str, /, **sizes: int) -> tuple[int, ...]:
    """Check that `tensor` is floating, has the dimensions of `legend`, and the `sizes` given.

    `legend` is a string of letters such as "B K J I"; a leading "..." stands for any number of dimensions. A dimension
    may be empty only where its size is given as 0.
    Returns the sizes in the legend's order, those of "..." left out.

    >>> require_tensor("votes", torch.zeros(2, 3, 4, 5), "B K J I", K=3)
    (2, 3, 4, 5)
    >>> require_tensor("votes", torch.zeros(2, 3, 4, 5), "B K J I", K=6)
    Traceback (most recent call last):
    ValueError: votes: expected shape [B, K=6, J, I], got [2, 3, 4, 5]
    """
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    letters = legend.split()
    open_ended = letters[0] == "..."
    wanted = letters[1:] if open_ended else letters
    found = tuple(tensor.shape[-len(wanted) :]) if len(wanted) <= tensor.ndim else None
    fits = found is not None and (open_ended or tensor.ndim == len(wanted))
    if not fits or any(sizes.get(letter, size) != size for letter, size in zip(wanted, found or (), strict=True)):
        pattern = ", ".join(f"{letter}={sizes[letter]}" if letter in sizes else letter for letter in letters)
        raise ValueError(f"{name}: expected shape [{pattern}], got {list(tensor.shape)}")
    if tensor.numel() == 0 and 0 not in sizes.values():
        raise ValueError(f"{name}: expected at least one element in each dimension, got shape {list(tensor.shape)}")
    if not tensor.is_floating_point():
        raise ValueError(f"{name}: expected a floating-point tensor, got {tensor.dtype}")
    require_values(name, tensor)
    return found or ()


def require_values(name: str, tensor: Tensor) -> None:
    """Refuse NaN, unless a graph is being captured or the caller has checked the values (`unchecked`)."""
    if _unwatched(tensor):
        return
    # amax carries a NaN through, in one pass and without a temporary of the tensor's size.
    if bool(torch.isnan(tensor.detach().amax())):
        count = int(torch.isnan(tensor.detach()).sum())
        raise ValueError(f"{name}: expected numbers, got NaN in {count} of {tensor.numel()} elements")


def require_between(name: str, tensor: Tensor, low: float, high: float) -> None:
    """Refuse NaN and values outside low … high, where values are looked at at all."""
    if _unwatched(tensor):
        return
    require_values(name, tensor)
    least, most = (float(value) for value in tensor.detach().aminmax())
    if not low <= least <= most <= high:
        raise ValueError(f"{name}: expected values from {low} to {high}, got {least:g} to {most:g}")


def _unwatched(tensor: Tensor) -> bool:
    """Return True where values are not to be looked at, or there are none."""
    trusted = getattr(_state, "unchecked", False) or torch.compiler.is_compiling()
    return trusted or tensor.device.type == "meta" or tensor.numel() == 0


def require_same_dtype(**tensors: Tensor) -> None:
    """Refuse operands of different dtypes, except under autocast, which brings them together itself."""
    kinds = {tensor.dtype for tensor in tensors.values()}
    if len(kinds) > 1 and not any(torch.is_autocast_enabled(tensor.device.type) for tensor in tensors.values()):
        got = ", ".join(f"{name} {tensor.dtype}" for name, tensor in tensors.items())
        raise ValueError(f"expected one dtype for all operands, got {got}")


def require_count(name: str, value: int, least: int = 1) -> int:
    """Check that `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return value


def both_sides(grid: int | tuple[int, int]) -> tuple[int, int]:
    """Return (H, W) of a grid given by its side or by both, each at least 1."""
    height, width = (grid, grid) if isinstance(grid, int) else grid
    return require_count("grid", height), require_count("grid", width)


def require_choice(name: str, value: str, choices: Sequence[str]) -> str:
    """Check that `value` is one of the `choices`."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def upcast(tensor: Tensor) -> Tensor:
    """Return a half-precision tensor in float32, for sums and norms that it cannot hold; others as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor

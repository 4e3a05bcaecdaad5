"""Build networks without drawing random weights, where others are loaded right after."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["Unfilled"]

_DRAWS = {Tensor.normal_, Tensor.uniform_}


class Unfilled(TorchFunctionMode):
    """Leaves the random numbers out of what is built in its block: weights hold whatever their memory holds.

    On the meta device they would cost the most, as PyTorch loads its compiler for them.

    >>> with Unfilled():
    ...     layer = torch.nn.Linear(3, 2)
    >>> layer.weight.shape
    torch.Size([2, 3])
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in _DRAWS or getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else given["tensor"]
        if func is torch.randn:
            return torch.empty(*args, **given)
        return func(*args, **given)

"""Seeded tensors described by their legend.

A legend is a string of the letters of `contextcaps.capsules`, such as "B K J"; with the letters' sizes it is a shape.
It also says which axes count images and which count classes, so that a test can take one image out or permute the
classes of any operand without knowing what the operand is. r is the rank of a low-rank form.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies
from hypothesis.strategies import SearchStrategy
from torch import Tensor

Sizes = dict[str, int]

seeds = strategies.integers(0, 2**31 - 1)


def sizes_up_to(**largest: int) -> SearchStrategy[Sizes]:
    """Random sizes of the given letters, from 1 to the number given."""
    return strategies.fixed_dictionaries({letter: strategies.integers(1, size) for letter, size in largest.items()})


def shape_of(legend: str, sizes: Sizes) -> tuple[int, ...]:
    """The shape a legend stands for; "K-1" is one less than K."""
    return tuple(sizes["K"] - 1 if letter == "K-1" else sizes[letter] for letter in legend.split())


def draw(legend: str, sizes: Sizes, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape_of(legend, sizes), generator=generator, dtype=torch.float64).to(dtype)


def draw_probabilities(legend: str, sizes: Sizes, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Numbers between 0 and 1, uniformly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape_of(legend, sizes), generator=generator, dtype=torch.float64).to(dtype)


def permute_classes(tensor: Tensor, legend: str, order: Sequence[int]) -> Tensor:
    """The tensor with the classes of all its J axes in another order."""
    for axis, letter in enumerate(legend.split()):
        if letter == "J":
            tensor = tensor.index_select(axis, torch.tensor(order))
    return tensor


def take_image(tensor: Tensor, legend: str, image: int) -> Tensor:
    """The part of one image, as a batch of one; what has no batch axis belongs to all images."""
    return tensor[image : image + 1] if legend.startswith("B") else tensor


def stretch(tensor: Tensor, axis: int) -> Tensor:
    """The tensor with one slice too many along an axis."""
    slice_shape = list(tensor.shape)
    slice_shape[axis] = 1
    return torch.cat([tensor, tensor.new_ones(slice_shape)], dim=axis)


def by_reference(function: Callable[..., Any], *arguments: object, **settings: object) -> Any:
    """The answer of a function of tests/reference.py, which takes NumPy's arrays, to our tensors."""

    def as_array(value: object) -> object:
        return value.detach().numpy() if isinstance(value, Tensor) else value

    return function(*map(as_array, arguments), **{name: as_array(value) for name, value in settings.items()})


def assert_equals_reference(fast: Tensor, slow: np.ndarray | float, rtol: float = 1e-9) -> None:
    """Compare a float64 result with that of tests/reference.py."""
    torch.testing.assert_close(fast, torch.as_tensor(slow, dtype=torch.float64), rtol=rtol, atol=1e-12)

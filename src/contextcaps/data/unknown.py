"""Say what a target is where nobody knows whether the class is present: neither 0 nor 1, but `UNKNOWN`.

Targets [n, J] are uint8: 1 present, 0 absent, 255 unknown. The mark travels in the targets themselves, from the source
through prepared copies, features and batches to losses and metrics, so that no step can lose it. Code that expects 0
and 1 alone meets a value that it refuses, rather than an absent class.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["UNKNOWN", "class_frequencies", "is_unknown", "labels_or_nan"]

UNKNOWN = 255
"""A target of which it is not known whether the class is present."""


def class_frequencies(targets: np.ndarray) -> np.ndarray:
    """Return the share of images that show each class, [J] float64, among those where it is known; 0 if it never is.

    Args:
        targets: [n, J], uint8.

    >>> class_frequencies(np.array([[1, 1], [0, 255], [0, 255]], dtype=np.uint8))
    array([0.33333333, 1.        ])
    """
    known = (targets != UNKNOWN).sum(axis=0, dtype=np.int64)  # [J]
    return (targets == 1).sum(axis=0, dtype=np.int64) / np.maximum(known, 1)


def is_unknown(targets: "Tensor") -> "Tensor":
    """Return which targets are unknown, as bool."""
    dtype = targets.dtype
    narrow = dtype.itemsize == 1 and dtype.is_signed  # such a type has no 255, and PyTorch takes it for -1
    return (targets.short() if narrow else targets) == UNKNOWN


def labels_or_nan(targets: "Tensor") -> "Tensor":
    """Return targets [n, J] as float32 with NaN for an unknown label, as fits to labels alone take them."""
    return targets.float().masked_fill(is_unknown(targets), math.nan)

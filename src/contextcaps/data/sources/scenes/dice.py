"""Draw the random numbers of `scenes` as hashes of their purpose: the same on every machine, in any order of access.

splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) in 64-bit integers:
no state is shared between images, and neither NumPy's version nor the processor can change a draw.
"""

import numpy as np

__all__ = ["Dice", "fold", "fold_all"]

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def fold(state: int, part: int) -> int:
    """Hash a number into a state: fold(fold(0, seed), index) is a state for that index of that seed."""
    mixed = (state + _GOLDEN * (part + 1)) & _WORD
    mixed = ((mixed ^ (mixed >> 30)) * _FIRST) & _WORD
    mixed = ((mixed ^ (mixed >> 27)) * _SECOND) & _WORD
    return mixed ^ (mixed >> 31)


def fold_all(states: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Apply `fold` to many states and parts, uint64 of shapes that broadcast."""
    mixed = states + np.uint64(_GOLDEN) * (parts + np.uint64(1))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
    return mixed ^ (mixed >> np.uint64(31))


class Dice:
    """Draws a stream of numbers from one state."""

    def __init__(self, state: int) -> None:
        self._state, self._drawn = state, 0

    def integer(self, low: int, high: int) -> int:
        """Draw a whole number from low to high, both included."""
        self._drawn += 1
        return low + fold(self._state, self._drawn) % (high - low + 1)

    def between(self, low: float, high: float) -> float:
        """Draw a number from low to high on a grid of 1024 steps, so that no later rounding depends on the machine."""
        return low + (high - low) * (self.integer(0, 1024) / 1024)

    def chance(self, percent: int) -> bool:
        return self.integer(1, 100) <= percent

    def sign(self) -> int:
        """Draw -1 or 1."""
        return 2 * self.integer(0, 1) - 1

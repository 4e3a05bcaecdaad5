"""Draw numbers by hashing names, so that a draw depends on neither order, nor split, nor the number of workers."""

import hashlib
from collections.abc import Sequence

import numpy as np

__all__ = ["draw"]


def draw(purpose: str, ids: Sequence[str], classes: Sequence[str] = ("",), seed: int = 0) -> np.ndarray:
    """Return numbers [n, J], float64, spread evenly from 0 to below 1: one for each pair of an image and a class.

    Args:
        purpose: what is drawn; draws for different purposes are independent.
        ids: [n], of the images.
        classes: [J], names.
        seed: another one gives other numbers.

    >>> draw("labels", ["a", "b"], ["cat", "dog"])[1, 0] == draw("labels", ["b"], ["cat"])[0, 0]
    np.True_
    """
    rows, columns = _hashes(ids, f"{purpose} {seed}"), _hashes(classes, "class")  # [n], [J]
    mixed = rows[:, None] + columns  # [n, J], modulo 2^64
    # The finaliser of SplitMix64 (Steele, Lea and Flood 2014): sums that are close give numbers that are not.
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)) * 2.0**-53


def _hashes(names: Sequence[str], key: str) -> np.ndarray:
    """Return a hash of each name [n], uint64."""
    start = hashlib.blake2b(digest_size=8, key=key.encode())
    digests = []
    for name in names:
        digest = start.copy()
        digest.update(name.encode(errors="surrogatepass"))
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)

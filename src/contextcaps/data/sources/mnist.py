"""Read MNIST's idx files (`mnist:FOLDER`), and make pairs of overlapping digits from them (`multimnist:FOLDER`).

The four files have their classic names (train-images-idx3-ubyte and so on; the test split is t10k), plain or with .gz.
MultiMNIST is made as in Sabour, Frosst and Hinton, "Dynamic Routing Between Capsules" (2017), section 6,
https://arxiv.org/abs/1710.09829: two digits of different classes from the same split, each shifted by up to 4 px in
each direction, which needs a frame of 36×36, laid over each other. The paper does not say how; the authors' code adds
the pixels and cuts the sum off at 255, and so does this.
"""

import gzip
import hashlib
import math
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from contextcaps.data.file_source import check_access
from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.sample import Boxes, Sample
from contextcaps.data.source import Source
from contextcaps.plain_files import NotPlain, require_plain

__all__ = ["MNISTSource", "MultiMNISTSource"]

_PREFIXES = {"train": "train", "test": "t10k"}
"""Split → prefix of its files' names."""
_IMAGES_MAGIC, _LABELS_MAGIC = 2051, 2049
_SHIFT = 4
"""Largest shift of a digit of a pair in each direction, in pixels."""


class _Digits:
    """Holds the images [n, H, W] and labels [n], both uint8, of one split."""

    def __init__(self, folder: Path, split: str) -> None:
        prefix = _PREFIXES[split]
        self.images_file = _find(folder, prefix, "images", 3)
        self.labels_file = _find(folder, prefix, "labels", 1)
        self.images = _read_idx(self.images_file, _IMAGES_MAGIC, 3)
        self.labels = _read_idx(self.labels_file, _LABELS_MAGIC, 1)
        if len(self.images) != len(self.labels):
            raise DataError(
                f"{self.images_file} has {len(self.images)} images, {self.labels_file} has {len(self.labels)} labels; "
                "expected as many of both: fetch the files again"
            )

    def identity(self) -> Iterator[str]:
        """Yield hashes of the content, since other sets of the same file names and sizes are common."""
        for array in (self.images, self.labels):
            yield f"{array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


class _DigitsSource(Source):
    """Reads the splits in a folder into memory; the base of both sources."""

    classes = tuple("0123456789")

    def __init__(self, location: str, on_bad: OnBad, split: str | None) -> None:
        super().__init__(f"{self.kind}:{location}", on_bad)
        folder = Path(location)
        check_access(self.name, folder)
        if not folder.is_dir():
            raise DataError(f"{self.name}: no such folder; expected one with MNIST's four idx files")
        self.root = os.path.realpath(folder)
        self.splits = tuple(
            split for split, prefix in _PREFIXES.items() if any(_candidates(folder, prefix, "images", 3))
        )
        if not self.splits:
            raise DataError(f"{self.name}: found neither train-images-idx3-ubyte nor t10k-images-idx3-ubyte (.gz)")
        chosen = self._choose_split("test" if split == "t10k" else split)
        self.digits = {name: _Digits(folder, name) for name in chosen}
        self._places: list[tuple[str, int]] = []
        """Split and number of each sample."""

    def __len__(self) -> int:
        return len(self._places)

    def _identity(self) -> Iterator[str]:
        for digits in self.digits.values():
            yield from digits.identity()


class MNISTSource(_DigitsSource):
    """Gives MNIST's digits, grey repeated to three channels; ids are "train-00000" and so on.

    Args:
        location: folder of the idx files.
        split: "train" or "test"; None opens both, train first.
    """

    kind = "mnist"

    def __init__(self, location: str, *, on_bad: OnBad = "stop", split: str | None = None) -> None:
        super().__init__(location, on_bad, split)
        for name, digits in self.digits.items():
            for position, label in enumerate(digits.labels.tolist()):
                if label < len(self.classes):
                    self._places.append((name, position))
                else:
                    self.problems.add(f"{name}-{position:05d}", f"expected a label from 0 to 9, got {label}")
        self._settle()

    def labels_of(self, index: int) -> tuple[int, ...]:
        name, position = self._places[index]
        return (int(self.digits[name].labels[position]),)

    def sample(self, index: int) -> Sample:
        name, position = self._places[index]
        image = np.repeat(self.digits[name].images[position][:, :, None], 3, axis=2)  # [H, W, 3]
        return Sample(f"{name}-{position:05d}", image, self.labels_of(index))


class MultiMNISTSource(_DigitsSource):
    """Gives pairs of overlapping digits of different classes, with boxes; ids are "train-0000000" and so on.

    The first digit of pair i is digit i (mod the number of digits), so that each digit is used equally often, as in
    the paper; everything else depends only on the seed, the split and i.

    Args:
        location: folder of MNIST's idx files.
        split: "train" or "test"; None opens both, train first.
        count: pairs in each split; None makes as many as there are digits (the paper: 1,000 for each digit).
        seed: seed of the pairs and shifts.
    """

    kind = "multimnist"

    def __init__(
        self,
        location: str,
        *,
        on_bad: OnBad = "stop",
        split: str | None = None,
        count: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(location, on_bad, split)
        if count is not None and count < 1:
            raise DataError(f"{self.name}: option count: expected at least 1, got {count}")
        self._seed, self._count = seed, count
        self._partners: dict[str, _Partners] = {}
        for name, digits in self.digits.items():
            if len(np.unique(digits.labels)) < 2 or digits.labels.max() >= len(self.classes):
                raise DataError(f"{digits.labels_file}: expected labels from 0 to 9 of at least two classes")
            self._partners[name] = _Partners(digits.labels)
            self._places += [(name, number) for number in range(len(digits.labels) if count is None else count)]
        self._settle()

    def _draw(self, index: int) -> tuple[_Digits, tuple[int, int], np.ndarray]:
        """Draw a pair: its split's digits, the two positions, and their shifts [2, 2] (down, right), from 0 to 8."""
        name, number = self._places[index]
        digits = self.digits[name]
        # A hash rather than NumPy's generator, whose numbers may change from one version to the next.
        drawn = hashlib.blake2b(f"{self._seed}/{name}/{number}".encode(), digest_size=40).digest()
        partner, *shifts = struct.unpack("<5Q", drawn)
        first = number % len(digits.labels)
        second = self._partners[name].of(int(digits.labels[first]), partner)
        return digits, (first, second), np.array([shift % (2 * _SHIFT + 1) for shift in shifts]).reshape(2, 2)

    def labels_of(self, index: int) -> tuple[int, ...]:
        digits, (first, second), _ = self._draw(index)
        return tuple(sorted((int(digits.labels[first]), int(digits.labels[second]))))

    def sample(self, index: int) -> Sample:
        digits, pair, shifts = self._draw(index)
        height, width = digits.images.shape[1:]
        frame = np.zeros((height + 2 * _SHIFT, width + 2 * _SHIFT), dtype=np.uint16)  # wide enough for the sum
        corners = np.zeros((2, 4), dtype=np.float32)
        for which, (position, (down, right)) in enumerate(zip(pair, shifts.tolist(), strict=True)):
            digit = digits.images[position]
            frame[down : down + height, right : right + width] += digit
            corners[which] = _extent(digit) + np.array([right, down, right, down])
        corners /= np.array([frame.shape[1], frame.shape[0]] * 2, dtype=np.float32)
        image = np.repeat(np.minimum(frame, 255).astype(np.uint8)[:, :, None], 3, axis=2)  # [H + 8, W + 8, 3]
        name, number = self._places[index]
        boxes = Boxes(digits.labels[list(pair)].astype(np.int64), corners)
        return Sample(f"{name}-{number:07d}", image, self.labels_of(index), boxes)

    def _identity(self) -> Iterator[str]:
        yield from super()._identity()
        yield f"count={self._count} seed={self._seed}"


class _Partners:
    """Finds digits of another class in constant time."""

    def __init__(self, labels: np.ndarray) -> None:
        self._by_class = np.argsort(labels, kind="stable")  # positions, those of class 0 first
        self._starts = np.searchsorted(labels[self._by_class], np.arange(11))

    def of(self, label: int, number: int) -> int:
        """Return the position of a digit of another class than `label`, which a large random number picks."""
        start, stop = int(self._starts[label]), int(self._starts[label + 1])
        rank = number % (len(self._by_class) - (stop - start))
        return int(self._by_class[rank if rank < start else rank + stop - start])


def _extent(digit: np.ndarray) -> np.ndarray:
    """Return left, top, right, bottom [4] of a digit's ink in pixels; the whole frame where there is none."""
    rows, columns = np.flatnonzero(digit.any(axis=1)), np.flatnonzero(digit.any(axis=0))
    if rows.size == 0:
        return np.array([0, 0, digit.shape[1], digit.shape[0]])
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])


def _candidates(folder: Path, prefix: str, what: str, dimensions: int) -> Iterator[Path]:
    """Yield the files of one part that exist, under the classic name or the one with a dot, plain or compressed."""
    for separator in ("-", "."):
        for ending in ("", ".gz"):
            path = folder / f"{prefix}-{what}{separator}idx{dimensions}-ubyte{ending}"
            if path.is_file():
                yield path


def _find(folder: Path, prefix: str, what: str, dimensions: int) -> Path:
    for path in _candidates(folder, prefix, what, dimensions):
        return path
    raise DataError(f"{folder}: {prefix}-{what}-idx{dimensions}-ubyte (or .gz) is missing beside its companion")


def _read_idx(path: Path, magic: int, dimensions: int) -> np.ndarray:
    """Read the array of an idx file: big-endian magic number and sizes, then bytes."""
    try:
        require_plain(path)
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions:
                raise DataError(f"{path}: cut off: {len(header)} bytes, less than an idx file's header")
            found, *shape = struct.unpack(f">{1 + dimensions}I", header)
            if found != magic:
                raise DataError(f"{path}: expected an idx file with magic number {magic}, got {found}")
            expected = math.prod(shape)
            if not 0 < expected < 2**31:  # so that a damaged header asks for no more memory than there is
                raise DataError(f"{path}: expected less than 2 GiB of bytes, at least one, the header says {shape}")
            content = file.read(expected)
            if len(content) < expected or file.read(1):
                came = "more" if len(content) == expected else f"{len(content)}: it is cut off"
                raise DataError(f"{path}: expected {expected} bytes after the header, got {came}; fetch it again")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the compressed file is cut off or damaged ({error}); fetch it again") from None
    except NotPlain as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)

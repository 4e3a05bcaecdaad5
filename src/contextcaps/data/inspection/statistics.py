"""What is in a source: counts, the company that classes keep, image sizes, and what is wrong with it.

With n images, c_i of them with class i and c_ij with both i and j, the lift of a pair is n · c_ij / (c_i · c_j): how
many times more often the two meet than they would by chance; below 1 they avoid each other. Where labels are
unknown, each pair is counted in the images in which both labels are known.
"""

import dataclasses
import math

import numpy as np

from contextcaps.data.decoding import checked_mask
from contextcaps.data.doubts import class_doubts
from contextcaps.data.images import decode, image_size
from contextcaps.data.problems import DataError, Problem
from contextcaps.data.source import Source
from contextcaps.data.unknown import UNKNOWN

__all__ = ["Inspection", "Pair", "evenly_spread", "inspect_source"]

_PAIRS_KEPT = 20
_COMMONEST = 500  # classes of which the counts of all pairs are kept
_CELLS = 2**22  # pairs of classes, or of an image and a class, at once


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two classes and how often they meet."""

    first: int
    """Class index."""
    second: int
    """Class index; the pair has no direction."""
    count: int
    """Images with both."""
    expected: float
    """Images with both if the two had nothing to do with each other."""
    lift: float
    """Count over expected."""


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What `inspect_source` found."""

    name: str
    """The source's name."""
    split: str | None
    """Which of its splits this is."""
    splits: tuple[str, ...]
    """The splits that it has by itself."""
    classes: tuple[str, ...]
    """J class names."""
    count: int
    """n, images."""
    labels_per_image: np.ndarray
    """[most + 1], int64: number of images with 0, 1, 2, … labels."""
    class_counts: np.ndarray
    """[J], int64: images with each class."""
    unknown_counts: np.ndarray
    """[J], int64: images in which it is not known whether they show the class."""
    commonest: np.ndarray
    """[C], int64: indices of the commonest classes, ascending; of all up to some hundreds."""
    together: np.ndarray
    """[C, C], int64: images with both of two of them; their `class_counts` on the diagonal."""
    expected: np.ndarray
    """[C, C], float64: images with both if they had nothing to do with each other."""
    least_support: int
    """Images that a pair needs (together, or by chance) to be listed."""
    co_occurrences: tuple[Pair, ...]
    """Pairs of the highest lifts, highest first."""
    exclusions: tuple[Pair, ...]
    """Pairs of the lowest lifts below 1, lowest first; among equal ones, those that chance would bring most often."""
    sizes: np.ndarray
    """[m, 2], int64: height and width in pixels of the images whose header was read."""
    images_read: int
    """Images whose header was read, bad ones included."""
    images_decoded: bool
    """Whether these were decoded to the end as well."""
    with_boxes: int
    """How many of them have boxes."""
    with_masks: int
    """How many of them have a mask."""
    problems: tuple[Problem, ...]
    """What is wrong: left out when the source was opened, or found in its images."""
    doubts: tuple[str, ...]
    """What makes the list of classes look wrong; training warns of the same."""
    notes: tuple[str, ...]
    """Worth knowing, but no reason to stop."""

    def label_statistics(self) -> dict[str, float]:
        """Return least, median, mean and most labels per image."""
        numbers = np.arange(len(self.labels_per_image))
        counts = self.labels_per_image
        reached = np.cumsum(counts)
        middle = [
            int(np.searchsorted(reached, rank, side="right")) for rank in ((self.count - 1) // 2, self.count // 2)
        ]
        return {
            "least": float(numbers[counts > 0][0]),
            "median": sum(middle) / 2,
            "mean": float((numbers * counts).sum() / self.count),
            "most": float(numbers[counts > 0][-1]),
        }

    def shares(self) -> np.ndarray:
        """Return the share of images with each class, [J], among those in which it is known."""
        return self.class_counts / np.maximum(self.count - self.unknown_counts, 1)

    def by_frequency(self) -> np.ndarray:
        """Return class indices, [J], the commonest first."""
        return np.argsort(-self.class_counts, kind="stable")

    def common_sizes(self) -> list[tuple[int, int, int]]:
        """Return (height, width, images) of each size, the commonest first."""
        if not len(self.sizes):
            return []
        distinct, counts = np.unique(self.sizes, axis=0, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return [(int(distinct[each, 0]), int(distinct[each, 1]), int(counts[each])) for each in order]

    def size_range(self) -> str:
        """Return least, greatest and median width and height, in words."""
        low, middle, high = (function(self.sizes, axis=0) for function in (np.min, np.median, np.max))
        width = f"width {low[1]} to {high[1]}, median {middle[1]:g}"
        return f"{width}; height {low[0]} to {high[0]}, median {middle[0]:g} pixels"


def inspect_source(
    source: Source, limit: int | None = None, check_images: bool = False, least_support: int | None = None
) -> Inspection:
    """Look through a source.

    Labels are counted in all samples; images are opened for their sizes, which takes the time.

    Args:
        source: what to look at.
        limit: open at most this many images, evenly spread over the source; None for all, 0 for none.
        check_images: decode these images and their masks to the end, not the images' headers only, which finds the
            truncated ones, and masks of another size or range.
        least_support: images that a pair needs to be listed: together for co-occurrences, by chance for exclusions.
            None: a thousandth of the images, and at least 3.
    """
    if limit is not None and limit < 0:
        raise ValueError(f"limit: expected 0 or more images, got {limit}")
    count = len(source)
    if least_support is None:
        least_support = max(3, math.ceil(count / 1000))
    targets = source.targets()  # [n, J]
    unknown = targets == UNKNOWN
    unknown_counts = unknown.sum(axis=0, dtype=np.int64)  # [J]
    targets[unknown] = 0
    class_counts = targets.sum(axis=0, dtype=np.int64)  # [J]
    labels = _Labels(targets, ~unknown if unknown_counts.any() else None, class_counts)
    co_occurrences, exclusions = _strongest_pairs(labels, least_support)
    commonest = np.sort(np.argsort(-class_counts, kind="stable")[:_COMMONEST])

    read = count if limit is None else min(limit, count)
    sizes, bad, with_boxes, with_masks = [], [], 0, 0
    for index in evenly_spread(count, read):
        try:
            sample = source.sample(index)
            where = sample.id
        except (DataError, OSError) as error:
            bad.append(Problem(f"sample {index}", str(error)))
            continue
        try:
            sizes.append(decode(sample.image).shape[:2] if check_images else image_size(sample.image))
            if check_images and sample.mask is not None:
                checked_mask(sample, len(source.classes))
        except (DataError, OSError) as error:
            bad.append(Problem(where, str(error)))
        with_boxes += sample.boxes is not None
        with_masks += sample.mask is not None
    return Inspection(
        name=source.name,
        split=source.split,
        splits=source.splits,
        classes=source.classes,
        count=count,
        labels_per_image=np.bincount(targets.sum(axis=1, dtype=np.int64)),
        class_counts=class_counts,
        unknown_counts=unknown_counts,
        commonest=commonest,
        together=labels.met(commonest, commonest),
        expected=labels.expected(commonest, commonest),
        least_support=least_support,
        co_occurrences=co_occurrences,
        exclusions=exclusions,
        sizes=np.array(sizes, dtype=np.int64).reshape(-1, 2),
        images_read=read,
        images_decoded=check_images,
        with_boxes=with_boxes,
        with_masks=with_masks,
        problems=(*source.problems.found, *bad),
        doubts=tuple(class_doubts(source)),
        notes=(*source.assumptions, *source.notes),
    )


def evenly_spread(count: int, chosen: int) -> list[int]:
    """Return `chosen` of the indices from 0 to `count` - 1, ascending, at equal distances."""
    return [(2 * index + 1) * count // (2 * chosen) for index in range(chosen)]


def _count_together(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Count images with a class of each, [n, J] and [n, J'] → [J, J'].

    In blocks of images, as float32 counts exactly up to 2²⁴ and multiplies fast.
    """
    together = np.zeros((one.shape[1], other.shape[1]), dtype=np.int64)
    images = max(1, min(16384, _CELLS // max(one.shape[1], other.shape[1], 1)))
    for start in range(0, len(one), images):
        block = slice(start, start + images)
        together += (one[block].astype(np.float32).T @ other[block].astype(np.float32)).astype(np.int64)
    return together


@dataclasses.dataclass(frozen=True)
class _Labels:
    """Labels of all images, and how often two classes meet in them."""

    present: np.ndarray
    """[n, J], 1 where an image shows a class."""
    known: np.ndarray | None
    """[n, J], whether that is known; None: it always is."""
    counts: np.ndarray
    """[J], images with each class."""

    def met(self, some: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return how many images show both a class of some and one of others, [S, O]."""
        return _count_together(self.present[:, some], self.present[:, others])

    def expected(self, some: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return how many images would show both by chance, [S, O], of those in which both are known."""
        if self.known is None:
            both = np.outer(self.counts[some], self.counts[others]).astype(np.float64)
            return both / max(len(self.present), 1)
        known = self.known[:, some], self.known[:, others]
        # Images with one of the two, the other known.
        some_shown = _count_together(self.present[:, some], known[1]).astype(np.float64)  # [S, O]
        others_shown = _count_together(known[0], self.present[:, others])  # [S, O]
        return some_shown * others_shown / np.maximum(_count_together(*known), 1)


def _strongest_pairs(labels: _Labels, least: int) -> tuple[tuple[Pair, ...], tuple[Pair, ...]]:
    """Return the pairs that meet most, and those that meet least, compared with chance.

    A class in fewer images than a pair needs is in no such pair; of the others some at a time are taken with all.
    """
    frequent = np.flatnonzero(labels.counts >= max(least, 1))
    close: list[Pair] = []
    apart: list[Pair] = []
    at_once = max(1, _CELLS // max(len(frequent), 1))
    for start in range(0, len(frequent), at_once):
        some = frequent[start : start + at_once]
        rows, columns = np.nonzero(some[:, None] < frequent)  # each pair once
        met = labels.met(some, frequent)[rows, columns]
        expected = labels.expected(some, frequent)[rows, columns]
        with np.errstate(invalid="ignore", divide="ignore"):
            lift = np.where(expected > 0, met / expected, 1.0)

        pairs = (some[rows], frequent[columns], met, expected, lift)
        near = np.flatnonzero((met >= least) & (lift > 1))
        far = np.flatnonzero((expected >= least) & (lift < 1))
        close += _pairs(pairs, near[np.lexsort((-met[near], -lift[near]))])
        apart += _pairs(pairs, far[np.lexsort((-expected[far], lift[far]))])
    close.sort(key=lambda pair: (-pair.lift, -pair.count))
    apart.sort(key=lambda pair: (pair.lift, -pair.expected))
    return tuple(close[:_PAIRS_KEPT]), tuple(apart[:_PAIRS_KEPT])


def _pairs(columns: tuple[np.ndarray, ...], chosen: np.ndarray) -> list[Pair]:
    """Return the first of some rows of columns as pairs."""
    return [Pair(*(column[row].item() for column in columns)) for row in chosen[:_PAIRS_KEPT]]

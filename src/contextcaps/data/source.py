"""Define what every source of images and labels has in common.

A source is a sequence of `Sample`s with class names and, where its data has them, given splits. The folder `sources`
has a file for each kind and says how to add one; `open_source` opens them by name.
"""

import abc
import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from contextcaps.data.decoding_limits import MAX_BYTES
from contextcaps.data.problems import DataError, OnBad, Problems
from contextcaps.data.sample import Sample
from contextcaps.data.unknown import UNKNOWN
from contextcaps.data.vocabulary import choose_split
from contextcaps.documents import counted

__all__ = ["Source", "Subset", "Unlabelled", "absent_classes", "have_same_data"]

Unlabelled = Literal["refuse", "drop", "keep"]
"""An image without a label is a problem, is left out and counted in the notes, or is kept."""

_SAMPLED_IMAGES = 64
"""Images of a source that are read to tell whether it has the same contents as another."""


class Source(abc.ABC, Sequence[Sample]):
    """Gives samples that share one list of classes, as a sequence.

    A subclass's constructor reads the source's index (not its images), calls `self.problems.add(where, what)` for
    each sample that cannot be used and leaves it out, and ends with `self._settle()`.
    """

    kind: ClassVar[str]
    """Name before the colon in `open_source`."""
    classes: tuple[str, ...]
    """Class names, in the order of the label indices."""
    split: str | None
    """Name of this split; None if the source has no splits, or all are open."""
    splits: tuple[str, ...]
    """Names of the splits that the data has; empty if none."""
    root: str
    """Resolved path of the folder or file that it reads; empty if it reads none. Part of the fingerprint."""
    assumptions: list[str]
    """What was assumed about labels and files where the data do not say it, such as which names are one class."""
    notes: list[str]
    """Remarks that are no reason to stop, such as classes without a positive."""

    def __init__(self, name: str, on_bad: OnBad = "stop", unlabelled: Unlabelled = "keep") -> None:
        if unlabelled not in ("refuse", "drop", "keep"):
            raise DataError(f"unlabelled: expected one of refuse, drop, keep, got {unlabelled!r}")
        self.name, self._unlabelled, self._dropped = name, unlabelled, 0
        self.problems = Problems(name, on_bad)
        self.split, self.splits, self.root, self.notes = None, (), "", []
        self.assumptions = []

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def sample(self, index: int) -> Sample:
        """Return the sample at an index from 0 to len - 1. May be called from several threads and processes at once."""

    @abc.abstractmethod
    def labels_of(self, index: int) -> tuple[int, ...]:
        """Return a sample's labels without reading its image."""

    def id_of(self, index: int) -> str:
        """Return a sample's id; a subclass that has it without reading the image says so."""
        return self.sample(index).id

    def unknown_of(self, index: int) -> tuple[int, ...]:
        """Return the classes of which it is not known whether a sample has them; none, unless a subclass says so."""
        return ()

    @abc.abstractmethod
    def _identity(self) -> Iterator[str]:
        """Yield strings that change when the data or the settings do: file names, sizes, times of change, options."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.sample(each) for each in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name}: expected an index below {len(self)}, got {index}")
        return self.sample(index % len(self))

    def __iter__(self) -> Iterator[Sample]:
        return (self.sample(index) for index in range(len(self)))

    def targets(self) -> np.ndarray:
        """Return the multi-hot targets [n, J], uint8, with `UNKNOWN` for an unknown label."""
        return self.targets_of(range(len(self)))

    def targets_of(self, indices: Sequence[int]) -> np.ndarray:
        """Return the targets of some samples, [B, J]."""
        targets = np.zeros((len(indices), len(self.classes)), dtype=np.uint8)
        for row, index in enumerate(indices):
            targets[row, list(self.labels_of(index))] = 1
            targets[row, list(self.unknown_of(index))] = UNKNOWN
        return targets

    def fingerprint(self) -> str:
        """Return a hash of exactly this data with these settings, for caches."""
        digest = hashlib.sha256()
        for part in (self.kind, self.root, str(self.split), *self.classes, *self._identity()):
            digest.update(part.encode(errors="surrogatepass") + b"\0")
        # Files from reproducible archives all have the same time; their labels tell data sets apart.
        digest.update(self.targets().tobytes())
        return digest.hexdigest()[:16]

    def contents(self) -> str:
        """Return a hash of the labels and images, wherever they lie.

        Unlike the fingerprint it stays the same when the data are copied, moved or touched. It covers all labels and
        64 evenly spaced images: reading every image would take as long as preparing them.
        """
        digest = hashlib.sha256()
        for part in (self.kind, *self.classes):
            digest.update(part.encode(errors="surrogatepass") + b"\0")
        digest.update(self.targets().tobytes())
        for index in np.linspace(0, len(self) - 1, min(len(self), _SAMPLED_IMAGES), dtype=np.int64).tolist():
            image = _image_bytes(self, index)
            digest.update(len(image).to_bytes(8, "little") + image)
        return digest.hexdigest()[:16]

    def _choose_split(self, split: str | None) -> tuple[str, ...]:
        """Set `split` to the one asked for, by its own or its plain name; return the splits to read, all for None."""
        if split is None:
            return self.splits
        self.split = choose_split(split, self.splits, self.name)
        return (self.split,)

    def _keeps(self, labels: Collection[object], name: str = "") -> bool:
        """Return whether an image with these labels is kept; count it if it is left out.

        Raises:
            DataError: it has none, and such images are refused; the message begins with `name`, if there is one.
        """
        if labels or self._unlabelled == "keep":
            return True
        if self._unlabelled == "refuse":
            what = "has no label; leave such images out with unlabelled=drop, or unlabelled=keep"
            raise DataError(f"{name} {what}" if name else what)
        self._dropped += 1
        return False

    def _settle(self) -> None:
        """Raise for bad samples (unless skipped) and for an empty source; note what was left out and absent classes."""
        if self._dropped:
            self.notes.append(f"{counted(self._dropped, 'image')} without a label left out (unlabelled=drop)")
        self.problems.settle()
        if len(self) == 0:
            found = f"; {self.problems.summary()}" if self.problems.found else ""
            raise DataError(f"{self.name}: no usable image found{found}")
        targets = self.targets()
        self.notes += absent_classes(self.classes, ~(targets == 1).any(axis=0))
        unknown = int((targets == UNKNOWN).sum())
        if unknown:
            columns = int((targets == UNKNOWN).any(axis=0).sum())
            self.notes.append(
                f"{unknown:,} of {targets.size:,} labels are unknown, in {columns} of {len(self.classes)} classes; "
                "they count neither in training nor in metrics"
            )


def absent_classes(classes: Sequence[str], absent: np.ndarray, where: str = "") -> list[str]:
    """Return a note on the classes without a positive, which `absent` [J], bool, marks; empty if there are none."""
    names = [name for name, is_absent in zip(classes, absent, strict=True) if is_absent]
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return [f"{len(names)} of {len(classes)} classes have no positive{where}: {shown}"] if names else []


def have_same_data(one: Source, other: Source) -> bool:
    """Return whether two sources are the same data, or copies of it."""
    return one.fingerprint() == other.fingerprint() or one.contents() == other.contents()


def _image_bytes(source: Source, index: int) -> bytes:
    """Return an image as it is stored, or its pixels; nothing where it cannot be read, which is reported elsewhere."""
    try:
        image = source.sample(index).image
        if isinstance(image, np.ndarray):
            return image.tobytes()
        if isinstance(image, bytes):
            return image
        return image.read_bytes() if image.is_file() and image.stat().st_size <= MAX_BYTES else b""
    except (OSError, ValueError):
        return b""


class Subset(Source):
    """Selects some samples of a source, in a given order: a split."""

    def __init__(self, source: Source, indices: Sequence[int], split: str) -> None:
        super().__init__(f"{source.name} ({split})", source.problems.on_bad)
        self.source, self.indices = source, [int(index) for index in indices]
        self.kind = source.kind  # type: ignore[misc]
        self.classes, self.split, self.assumptions = source.classes, split, source.assumptions

    def __len__(self) -> int:
        return len(self.indices)

    def sample(self, index: int) -> Sample:
        return self.source.sample(self.indices[index])

    def id_of(self, index: int) -> str:
        return self.source.id_of(self.indices[index])

    def labels_of(self, index: int) -> tuple[int, ...]:
        return self.source.labels_of(self.indices[index])

    def unknown_of(self, index: int) -> tuple[int, ...]:
        return self.source.unknown_of(self.indices[index])

    def _identity(self) -> Iterator[str]:
        yield self.source.fingerprint()
        yield np.asarray(self.indices, dtype=np.int64).tobytes().hex()

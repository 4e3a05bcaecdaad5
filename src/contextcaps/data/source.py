"""Sources: where images and labels come from. `open_source` opens any of them by name.

A source is a sequence of `Sample`s with class names and, where its data has them, given splits. Each kind is one file
of this folder, which registers itself with `@register_source`; `open_source` imports it when the kind is asked for.
"""

import abc
import hashlib
import importlib
import inspect
import typing
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from contextcaps.data.problems import DataError, OnBad, Problems
from contextcaps.data.sample import Sample

__all__ = ["Source", "Subset", "have_same_data", "open_source", "register_source", "source_kinds"]

_MODULES = {
    "scenes": "contextcaps.data.sources.scenes",
    "ade20k": "contextcaps.data.sources.ade20k",
    "coco": "contextcaps.data.sources.coco",
    "voc": "contextcaps.data.sources.voc",
    "table": "contextcaps.data.sources.table",
    "shards": "contextcaps.data.sources.shards",
    "mnist": "contextcaps.data.sources.mnist",
    "multimnist": "contextcaps.data.sources.mnist",
    "hf": "contextcaps.data.sources.hf",
}
"""Kind → module that registers it."""

_IMAGES_LOOKED_AT = 64  # of a source, to tell whether it has the same contents as another

_OPENERS: dict[str, Callable[..., "Source"]] = {}


class Source(abc.ABC, Sequence[Sample]):
    """A sequence of samples that share one list of classes.

    A subclass's constructor reads the source's index (not its images), calls `self.problems.add(where, what)` for
    each sample that cannot be used and leaves it out, and ends with `self._settle()`.
    """

    kind: ClassVar[str]
    """The name before the colon."""
    classes: tuple[str, ...]
    """Names of the classes, in the order of the label indices."""
    split: str | None
    """Which of the source's given splits this is, if it has any."""
    splits: tuple[str, ...]
    """The splits that the source has by itself; empty if none."""
    root: str
    """The resolved path of the folder or file that it reads; empty if it reads none. Part of the fingerprint."""
    notes: list[str]
    """Things worth knowing that are no reason to stop, such as classes without a positive."""

    def __init__(self, name: str, on_bad: OnBad = "stop") -> None:
        self.name = name
        self.problems = Problems(name, on_bad)
        self.split, self.splits, self.root, self.notes = None, (), "", []

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def sample(self, index: int) -> Sample:
        """The sample at an index from 0 to len - 1. May be called from several threads and processes at once."""

    @abc.abstractmethod
    def labels_of(self, index: int) -> tuple[int, ...]:
        """A sample's labels, without reading its image."""

    @abc.abstractmethod
    def _identity(self) -> Iterator[str]:
        """Strings that change when the data or the settings do: file names, sizes, times of change, options."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.sample(each) for each in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name}: expected an index below {len(self)}, got {index}")
        return self.sample(index % len(self))

    def __iter__(self) -> Iterator[Sample]:
        return (self.sample(index) for index in range(len(self)))

    def targets(self) -> np.ndarray:
        """Multi-hot targets [n, J], uint8."""
        targets = np.zeros((len(self), len(self.classes)), dtype=np.uint8)
        for index in range(len(self)):
            targets[index, list(self.labels_of(index))] = 1
        return targets

    def fingerprint(self) -> str:
        """A short name for exactly this data with these settings, for caches."""
        digest = hashlib.sha256()
        for part in (self.kind, self.root, str(self.split), *self.classes, *self._identity()):
            digest.update(part.encode(errors="surrogatepass") + b"\0")
        # Files that reproducible archives hold have all the same time; their labels tell data sets apart.
        digest.update(self.targets().tobytes())
        return digest.hexdigest()[:16]

    def contents(self) -> str:
        """A short name for these labels and images, wherever they lie.

        Unlike the fingerprint it stays the same when the data are copied, moved or touched. It is of all labels, and
        of 64 images that lie evenly among all: to read each would take as long as to prepare them.
        """
        digest = hashlib.sha256()
        for part in (self.kind, *self.classes):
            digest.update(part.encode(errors="surrogatepass") + b"\0")
        digest.update(self.targets().tobytes())
        for index in np.linspace(0, len(self) - 1, min(len(self), _IMAGES_LOOKED_AT), dtype=np.int64).tolist():
            image = _image_bytes(self, index)
            digest.update(len(image).to_bytes(8, "little") + image)
        return digest.hexdigest()[:16]

    def _settle(self) -> None:
        """Refuse what is to be refused, and an empty source always; note classes without a positive."""
        self.problems.settle()
        if len(self) == 0:
            found = f"; {self.problems.summary()}" if self.problems.found else ""
            raise DataError(f"{self.name}: no usable image found{found}")
        counts = self.targets().sum(axis=0)
        absent = [name for name, count in zip(self.classes, counts, strict=True) if count == 0]
        if absent:
            shown = ", ".join(absent[:10]) + (f" and {len(absent) - 10} more" if len(absent) > 10 else "")
            self.notes.append(f"{len(absent)} of {len(self.classes)} classes have no positive: {shown}")


def have_same_data(one: Source, other: Source) -> bool:
    """Whether two sources are the same data, or copies of them."""
    return one.fingerprint() == other.fingerprint() or one.contents() == other.contents()


def _image_bytes(source: Source, index: int) -> bytes:
    """An image as it is stored, or its pixels; nothing where it cannot be read, which others tell."""
    try:
        image = source.sample(index).image
        if isinstance(image, np.ndarray):
            return image.tobytes()
        return image if isinstance(image, bytes) else image.read_bytes()
    except (OSError, ValueError):
        return b""


class Subset(Source):
    """Some samples of a source, in a given order: a split."""

    def __init__(self, source: Source, indices: Sequence[int], split: str) -> None:
        super().__init__(f"{source.name} ({split})", source.problems.on_bad)
        self.source, self.indices = source, [int(index) for index in indices]
        self.kind = source.kind  # type: ignore[misc]
        self.classes, self.split = source.classes, split

    def __len__(self) -> int:
        return len(self.indices)

    def sample(self, index: int) -> Sample:
        return self.source.sample(self.indices[index])

    def labels_of(self, index: int) -> tuple[int, ...]:
        return self.source.labels_of(self.indices[index])

    def _identity(self) -> Iterator[str]:
        yield self.source.fingerprint()
        yield np.asarray(self.indices, dtype=np.int64).tobytes().hex()


def register_source(kind: str) -> Callable[[type[Source]], type[Source]]:
    """Class decorator: `open_source("KIND:LOCATION", option=…)` calls the class with the location and the options."""

    def register(opener: type[Source]) -> type[Source]:
        _OPENERS[kind] = opener
        return opener

    return register


def source_kinds() -> list[str]:
    """The kinds of source that `open_source` knows."""
    return [*_MODULES, *(kind for kind in _OPENERS if kind not in _MODULES)]


def open_source(spec: str, *, on_bad: OnBad = "stop", **options: Any) -> Source:
    """Open a source by name: "KIND:LOCATION", with options as arguments or as "?option=value&option=value" at the end.

    Args:
        spec: "scenes", "ade20k:PATH", "coco:PATH", "voc:PATH", "table:FILE", "shards:PATTERN", "mnist:PATH",
            "multimnist:PATH" or "hf:NAME".
        on_bad: "stop" at bad data, or "skip" it.
        options: those of the kind, such as `split="train"`.
    """
    kind, _, rest = spec.partition(":")
    if "?" in kind:  # a kind without a location, such as "scenes?count=100"
        kind, _, query = spec.partition("?")
        rest = f"?{query}"
    location, _, query = rest.partition("?") if _has_options(rest) else (rest, "", "")
    if kind in _MODULES:
        importlib.import_module(_MODULES[kind])
    if kind not in _OPENERS:
        known = ", ".join(source_kinds())
        hint = f" (for a folder of files, name its layout: coco:{spec})" if Path(spec).exists() else ""
        raise DataError(f"{spec}: expected KIND:LOCATION with one of {known}{hint}")
    opener = _OPENERS[kind]
    allowed = inspect.signature(opener).parameters
    written = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    for option in (*written, *options):
        if option not in allowed or option in ("location", "on_bad"):
            offered = ", ".join(name for name in allowed if name not in ("location", "on_bad"))
            raise DataError(f"{spec}: {kind} has no option {option!r}; it has {offered or 'none'}")
    converted = {option: _convert(spec, option, text, allowed[option]) for option, text in written.items()}
    return opener(location, on_bad=on_bad, **{**converted, **options})


def _convert(spec: str, option: str, text: str, parameter: inspect.Parameter) -> Any:
    """An option written in a name, as the type that the parameter's annotation asks for."""
    kinds = typing.get_args(parameter.annotation) or (parameter.annotation,)
    if bool in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    if str not in kinds and not all(isinstance(kind, str) for kind in kinds):  # a Literal's choices are strings
        expected = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds if kind is not type(None))
        raise DataError(f"{spec}: option {option}: expected {expected}, got {text!r}")
    return text


def _has_options(rest: str) -> bool:
    """Whether a question mark begins options; in a file pattern such as train-?.tar it does not."""
    return "=" in rest.rpartition("?")[2] and "?" in rest

"""Write the samples of sources to tar shards: each sample once, and all shards or none."""

import dataclasses
import errno
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from contextcaps.data.cache import synchronise
from contextcaps.data.images import decode
from contextcaps.data.problems import DataError, Problems
from contextcaps.data.sample import Sample
from contextcaps.data.shard_format import (
    CLASSES_FILE,
    JSON_SUFFIX,
    MASK_SUFFIX,
    encode_annotation,
    encode_image,
    encode_mask,
    member_stem,
)
from contextcaps.data.source import Source
from contextcaps.data.vocabulary import read_classes

__all__ = ["NO_SPLIT", "Part", "ShardEncoder", "write_parts"]

NO_SPLIT = "all"
"""Prefix of the shards of a source without splits, or with all of them."""
Member = tuple[str, bytes]
"""A member's name and content."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Describes what was written of one split."""

    split: str
    """Name of the split, and prefix of its shards' names."""
    samples: int
    """Samples written."""
    repeated: int
    """Samples left out because an earlier part has them, as with VOC's trainval."""
    shards: tuple[Path, ...]
    """Empty if all were left out."""


class ShardEncoder:
    """Encodes the samples of one part after the other as members of shards, each sample once.

    Args:
        problems: gets the samples that cannot be read.
        tell: called with 1 after each sample, except those that an earlier part has.
    """

    def __init__(self, problems: Problems, tell: Callable[[int], None]) -> None:
        self.problems, self._tell = problems, tell
        self._digests: dict[str, bytes] = {}  # of the annotation of every sample met so far, by id
        self.written = self.repeated = 0
        """Samples of the current part that were encoded, and that were left out because an earlier one has them."""

    @property
    def count(self) -> int:
        """Return the number of different samples so far, the bad ones included."""
        return len(self._digests)

    def encode_all(self, source: Source) -> Iterator[list[Member]]:
        """Yield the members of each sample that can be read and that no earlier part has."""
        self.written = self.repeated = 0
        earlier = self._digests
        self._digests = dict(earlier)
        for index in range(len(source)):
            where = f"sample {index}"
            try:
                sample = source.sample(index)
                where = sample.id
                annotation = encode_annotation(sample, source.classes)
                digest = hashlib.sha256(annotation).digest()
                if earlier.get(sample.id) == digest:
                    self.repeated += 1
                    continue
                if sample.id in self._digests:
                    raise DataError("another sample has the same id; shards need a different one for each")
                self._digests[sample.id] = digest
                members = _encode(sample, annotation)
            except (DataError, OSError) as error:
                self.problems.add(where, str(error))
            else:
                self.written += 1
                yield members
            self._tell(1)


def _encode(sample: Sample, annotation: bytes) -> list[Member]:
    stem = member_stem(sample.id)
    decode(sample.image)  # to its end: a file that was cut off has a good header
    suffix, image = encode_image(sample.image)
    members = [(stem + suffix, image), (stem + JSON_SUFFIX, annotation)]
    if sample.mask is not None:
        members.append((stem + MASK_SUFFIX, encode_mask(sample.mask())))
    return members


def write_parts(
    parts: Iterator[tuple[str, Source]],
    names: Sequence[str],
    classes: tuple[str, ...],
    folder: Path,
    name: str,
    samples_per_shard: int,
    encoder: ShardEncoder,
) -> list[Part]:
    """Write parts under names beginning with a dot, then give all shards their own names; or leave nothing.

    Args:
        parts: the parts' names and samples; each is asked for once those before it are written.
        names: names that the parts may have.
        classes: the classes of all parts.
        folder: folder of the shards.
        name: name of the whole, for the temporary folder.
        samples_per_shard: samples in each shard.
        encoder: encodes the samples; its problems are reported before any shard gets its name.
    """
    for each in names:
        if not re.fullmatch(r"\w[\w-]*", each):
            raise DataError(f"split {each!r}: expected letters, digits, - and _ only, since files are named after it")
    if samples_per_shard < 1:
        raise DataError(f"samples_per_shard: expected at least 1, got {samples_per_shard}")
    _check_folder(folder, name, classes)
    partial = folder / f".{name}.partial"
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    placed: list[Path] = []
    written: list[Part] = []
    is_mine = False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        is_mine = True
        for split, source in parts:
            shards = _write_all(encoder.encode_all(source), partial, split, samples_per_shard)
            written.append(Part(split, encoder.written, encoder.repeated, tuple(folder / path.name for path in shards)))
        encoder.problems.settle()
        if not any(part.shards for part in written):
            raise DataError(f"no usable image found; {encoder.problems.summary()}")
        finished = [path.name for part in written for path in part.shards]
        if not (folder / CLASSES_FILE).exists():  # else it is that of another split, and the same
            (partial / CLASSES_FILE).write_bytes(json.dumps(list(classes), indent=0).encode("ascii") + b"\n")
            synchronise(partial / CLASSES_FILE)
            finished.append(CLASSES_FILE)
        for each in finished:
            placed.append(folder / each)  # before it is moved, so that an interruption finds it
            os.replace(partial / each, folder / each)
        partial.rmdir()
    except BaseException as error:
        if is_mine:
            for path in placed:
                path.unlink(missing_ok=True)
            shutil.rmtree(partial, ignore_errors=True)
        _remove_empty(made)
        if isinstance(error, FileExistsError) and not is_mine and partial.exists():
            what = "a conversion is under way there or was cut off; if none is, delete it"
            raise DataError(f"{partial}: {what}") from None
        if isinstance(error, OSError):
            why = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
            raise DataError(f"{folder}: the shards cannot be written: {why}; none of them is left behind") from None
        raise
    return written


def _check_folder(folder: Path, name: str, classes: tuple[str, ...]) -> None:
    """Raise for a folder with anything in it but other splits' shards of the same classes."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder, or nothing, to write shards to")
    for path in sorted(folder.iterdir()):
        is_shard = path.suffix == ".tar" and name != NO_SPLIT and re.sub(r"-\d+$", "", path.stem) != name
        is_partial = path.name.startswith(".") and path.suffix == ".partial"
        if path.name == CLASSES_FILE:
            if read_classes(path) != classes:
                raise DataError(f"{path}: lists other classes than the source; choose a new or empty folder")
        elif not is_shard and not is_partial:
            raise DataError(f"{folder}: not empty (it has {path.name}); choose a new or empty folder")


def _write_all(samples: Iterator[list[Member]], folder: Path, name: str, samples_per_shard: int) -> list[Path]:
    """Write samples to shards in a folder, `samples_per_shard` to each but the last."""
    shards: list[Path] = []
    while (first := next(samples, None)) is not None:
        path = folder / f"{name}-{len(shards):05d}.tar"
        with tarfile.open(path, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for members in itertools.chain([first], itertools.islice(samples, samples_per_shard - 1)):
                for member, content in members:
                    info = tarfile.TarInfo(member)  # its defaults: time, user and group 0, mode 644
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        synchronise(path)
        shards.append(path)
    return shards


def _remove_empty(made: Sequence[Path]) -> None:
    """Remove the folders that a failed conversion made, the innermost first."""
    for folder in made:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()

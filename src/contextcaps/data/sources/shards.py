"""Read WebDataset tar shards (`shards:PATTERN`); `contextcaps.data.shard_format` says what is in them.

Opening reads the headers and the .json members; images are read by their offset, so shards may be larger than memory
and samples be read in any order, which the webdataset package does not offer.
"""

import dataclasses
import functools
import itertools
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from contextcaps.data.decoding_limits import MAX_BYTES
from contextcaps.data.images import image_size
from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.sample import Boxes, Corners, Sample
from contextcaps.data.shard_format import (
    CLASSES_FILE,
    IMAGE_SUFFIXES,
    JSON_SUFFIX,
    MASK_SUFFIX,
    decode_boxes,
    decode_mask,
    suffix_of,
)
from contextcaps.data.source import Source, Unlabelled
from contextcaps.data.sources.shard_files import find_shards, split_of_shard
from contextcaps.data.vocabulary import Vocabulary, read_classes
from contextcaps.plain_files import parse_json

__all__ = ["ShardsSource"]

_JSON_BYTES = 2**24  # an annotation of more than 16 MiB is not one


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """Locates a member's bytes."""

    shard: int
    offset: int
    size: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """Holds a sample as the index keeps it; its boxes are rows of the source's arrays."""

    id: str
    image: _Member
    mask: _Member | None
    labels: tuple[int, ...]
    boxes: range | None
    split: str | None
    unknown: tuple[int, ...] = ()


class ShardsSource(Source):
    """Gives the samples of tar shards, in the order of the shards' names.

    Args:
        location: a pattern of file names such as "DIR/train-*.tar" or "DIR/train-{000..012}.tar", or a folder.
        split: shards named as `split_of_shard` knows (train-0001.tar) are given splits; None opens all that match.
        classes: file with the class names (.json list, or one per line). Default: classes.json beside the shards, or
            else the names found, sorted.
        unlabelled: an image without a label is a problem ("refuse"), left out ("drop") or kept ("keep").
        unify: labels that differ only in case or white space are one class.
    """

    kind = "shards"

    def __init__(
        self,
        location: str,
        *,
        on_bad: OnBad = "stop",
        split: str | None = None,
        classes: str | None = None,
        unlabelled: Unlabelled = "refuse",
        unify: bool = True,
    ) -> None:
        super().__init__(f"shards:{location}", on_bad, unlabelled)
        self.paths = find_shards(location)
        split_of = [split_of_shard(path) for path in self.paths]
        self.splits = tuple(dict.fromkeys(name for name in split_of if name is not None))
        self._choose_split(split)
        self._vocabulary, self._classes_file = self._given_classes(classes, unify)
        if self._vocabulary.given and self.split is not None:
            chosen = [path for path, name in zip(self.paths, split_of, strict=True) if name == self.split]
            self.paths, split_of = chosen, [self.split] * len(chosen)
        self.root = os.path.realpath(os.path.commonpath([path.parent for path in self.paths]))
        self._stats = [path.stat() for path in self.paths]
        self._entries: list[_Entry] = []
        self._seen: set[str] = set()
        self._box_labels: list[int] = []
        self._box_corners: list[Corners] = []
        self._ignored = 0
        for shard, path in enumerate(self.paths):
            self._index(shard, path, split_of[shard])
        self._finish()
        self._settle()

    def _given_classes(self, option: str | None, unify: bool) -> tuple[Vocabulary, Path | None]:
        """Read the list of classes that the option names or that lies beside the shards; return its file, too."""
        if option is not None:
            return Vocabulary(read_classes(Path(option)), option, unify), Path(option)
        beside = [folder / CLASSES_FILE for folder in sorted({path.parent for path in self.paths})]
        lists = {path: read_classes(path, path.parent) for path in beside if path.exists()}
        if len(set(lists.values())) > 1:
            files = " and ".join(str(path) for path in lists)
            raise DataError(f"{self.name}: {files} list different classes; name one with classes=FILE")
        for path, names in lists.items():
            return Vocabulary(names, str(path), unify), path
        return Vocabulary(None, unify=unify), None

    def _index(self, shard: int, path: Path, split: str | None) -> None:
        """Read a shard's headers and annotations into the index."""
        try:
            with path.open("rb") as file, _open_tar(file) as tar:
                size = os.fstat(file.fileno()).st_size
                members = self._members(tar, path, shard, size)
                for stem, group in itertools.groupby(members, key=lambda each: each[0]):
                    self._add(path, stem, [(suffix, member) for _, suffix, member in group], split)
                file.seek(min(tar.offset, size))  # a header may say that its member is longer than any file
                end = file.read(tarfile.BLOCKSIZE)
                # tarfile takes a broken header, or the end of the file, for the end of the archive.
                if len(end) < tarfile.BLOCKSIZE:
                    self.problems.add(str(path), f"cut off after {size} bytes, without an end mark; fetch it again")
                elif any(end):
                    self.problems.add(str(path), f"broken at byte {tar.offset}: no tar header there; fetch it again")
        except tarfile.TarError as error:
            self.problems.add(str(path), f"expected a tar archive: {error}")
        except OSError as error:
            self.problems.add(str(path), f"cannot be read: {error.strerror}")

    @staticmethod
    def _next(tar: tarfile.TarFile) -> tarfile.TarInfo | None:
        """Read the next header; return None where the archive ends or is cut off, which `_index` tells apart."""
        try:
            return tar.next()
        except Exception:  # at damaged headers tarfile raises nearly every kind of error
            return None

    def _members(self, tar: tarfile.TarFile, path: Path, shard: int, size: int) -> Iterator[tuple[str, str, _Member]]:
        """Yield stem, suffix and place of each member that belongs to a sample."""
        while (info := self._next(tar)) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep every header in memory
            if info.size < 0:  # older versions of tarfile would go back, and round for ever
                raise tarfile.ReadError(f"{info.name!r} has a negative size")
            if info.isdir():
                continue
            where = f"{path}: {info.name}"
            parts = info.name.split("/")
            if info.name.startswith("/") or ".." in parts:
                self.problems.add(where, "the member's name leads out of the archive")
            elif not info.isreg() or info.issparse():
                self.problems.add(where, "expected a plain file, got a link, a device or a sparse file")
            elif info.offset_data + info.size > size:
                self.problems.add(where, f"cut off: {info.size} bytes announced, {size - info.offset_data} there")
            else:
                name = "/".join(part for part in parts if part != ".")
                suffix = suffix_of(name)
                if suffix is None:
                    self._ignored += 1
                else:
                    yield name[: -len(suffix)], suffix, _Member(shard, info.offset_data, info.size)

    def _add(self, path: Path, stem: str, members: list[tuple[str, _Member]], split: str | None) -> None:
        """Take a sample into the index, or its problem into the problems."""
        where = f"{path}: {stem}"
        annotations = [member for suffix, member in members if suffix == JSON_SUFFIX]
        masks = [member for suffix, member in members if suffix == MASK_SUFFIX]
        images = [member for suffix, member in members if suffix in IMAGE_SUFFIXES]
        try:
            if len(images) != 1:
                raise DataError("an annotation without an image" if not images else f"{len(images)} images of one name")
            if len(annotations) != 1:
                raise DataError("an image without a .json" if not annotations else "more than one .json of this name")
            if len(masks) > 1:
                raise DataError("more than one mask of this name")
            if images[0].size == 0:
                raise DataError("the image is empty (0 bytes)")
            self._take(stem, images[0], masks[0] if masks else None, annotations[0], split)
        except DataError as error:
            self.problems.add(where, str(error))

    def _take(self, stem: str, image: _Member, mask: _Member | None, annotation: _Member, split: str | None) -> None:
        if annotation.size > _JSON_BYTES:
            raise DataError(f"the .json has {annotation.size} bytes, more than an annotation can have")
        try:
            content = parse_json(self._read(annotation))
        except ValueError as error:
            raise DataError(f"the .json is cut off or bad: {error}") from None
        if not isinstance(content, dict) or not isinstance(content.get("labels"), list):
            raise DataError('the .json: expected {"labels": [...], ...}')
        identifier = content.get("id", stem)
        if type(identifier) is int:  # as some writers have it
            identifier = str(identifier)
        if not isinstance(identifier, str) or not identifier:
            raise DataError(f"the .json: expected a text as id, got {identifier!r}")
        if identifier in self._seen:
            raise DataError(f"the id {identifier!r} is there twice")
        missing = content.get("unknown", [])
        if not isinstance(missing, list):
            raise DataError(f"the .json: expected a list of classes as unknown, got {type(missing).__name__}")
        names, corners = decode_boxes(content.get("boxes"))
        indices = self._vocabulary.add(content["labels"] + names + missing)
        indices, unknown = indices[: len(indices) - len(missing)], indices[len(indices) - len(missing) :]
        count = len(content["labels"])
        if set(unknown) & set(indices):
            raise DataError("the .json: a class is both unknown and there, as a label or a box")
        if not self._keeps(content["labels"] or missing):
            return
        boxes = None
        if content.get("boxes") is not None:
            boxes = range(len(self._box_labels), len(self._box_labels) + len(names))
            self._box_labels += indices[count:]
            self._box_corners += corners
        self._seen.add(identifier)
        self._entries.append(_Entry(identifier, image, mask, tuple(indices[:count]), boxes, split, tuple(unknown)))

    def _finish(self) -> None:
        """Give every label its final index, and keep only the split that was asked for."""
        self.classes, final = self._vocabulary.final()
        self.assumptions += self._vocabulary.assumptions()
        self._entries = [
            dataclasses.replace(
                entry,
                labels=tuple(sorted({int(final[label]) for label in entry.labels})),
                unknown=tuple(sorted({int(final[label]) for label in entry.unknown})),
            )
            for entry in self._entries
            if self.split is None or entry.split == self.split
        ]
        self._boxes = Boxes.from_lists(final[self._box_labels].tolist(), self._box_corners)
        del self._seen, self._box_labels, self._box_corners
        if not self._vocabulary.given:
            self.notes.append(f"no classes.json beside the shards: the classes are the {len(self.classes)} names found")
        if self._ignored:
            self.notes.append(f"{self._ignored} members that are no image, mask or .json passed over")

    def __len__(self) -> int:
        return len(self._entries)

    def id_of(self, index: int) -> str:
        return self._entries[index].id

    def labels_of(self, index: int) -> tuple[int, ...]:
        return self._entries[index].labels

    def unknown_of(self, index: int) -> tuple[int, ...]:
        return self._entries[index].unknown

    def sample(self, index: int) -> Sample:
        entry = self._entries[index]
        boxes = None
        if entry.boxes is not None:
            rows = slice(entry.boxes.start, entry.boxes.stop)
            boxes = Boxes(self._boxes.labels[rows], self._boxes.corners[rows])
        mask = functools.partial(self._read_mask, entry) if entry.mask is not None else None
        return Sample(entry.id, self._read(entry.image), entry.labels, boxes, mask, entry.unknown)

    def _read(self, member: _Member) -> bytes:
        """Read a member's bytes; opening the file each time is cheap, and safe with any processes and threads."""
        path = self.paths[member.shard]
        if member.size > MAX_BYTES:
            raise DataError(f"{path}: a member of {member.size:,} bytes; files of more than {MAX_BYTES:,} are not read")
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(member.offset)
                content = file.read(member.size)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        if len(content) != member.size:
            raise DataError(f"{path}: expected {member.size} bytes at byte {member.offset}, got {len(content)}")
        return content

    def _read_mask(self, entry: _Entry) -> np.ndarray:
        """Read the mask [H, W], int32."""
        assert entry.mask is not None
        try:
            size = image_size(self._read(entry.image))
            return decode_mask(self._read(entry.mask), size, len(self.classes))
        except DataError as error:
            raise DataError(f"{self.paths[entry.mask.shard]}: {entry.id}: {error}") from None

    def _identity(self) -> Iterator[str]:
        files = list(zip(self.paths, self._stats, strict=True))
        if self._classes_file is not None:
            files.append((self._classes_file, self._classes_file.stat()))
        base = os.path.commonpath([path.parent for path in self.paths])
        for path, stat in files:
            yield f"{os.path.relpath(path, base)} {stat.st_size} {stat.st_mtime_ns}"
        yield f"unlabelled={self._unlabelled} on_bad={self.problems.on_bad}"


def _open_tar(file: BinaryIO) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=file, mode="r:")
    except (tarfile.TarError, OSError):
        raise
    except Exception as error:  # as above: opening reads the first header
        raise tarfile.ReadError(str(error)) from None
